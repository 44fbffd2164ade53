// Adds to times in UTC what they are where the reader is. It runs before the page is drawn, so nothing moves.
{
  const clock = (date) => new Intl.DateTimeFormat([], { weekday: "short", hour: "2-digit", minute: "2-digit" }).format(date);
  const isUtc = new Date().getTimezoneOffset() === 0;
  for (const time of isUtc ? [] : document.querySelectorAll("time[data-local]")) {
    time.append(` (${clock(new Date(time.dateTime))} here)`);
  }
  for (const input of isUtc ? [] : document.querySelectorAll("input[data-utc]")) {
    const here = document.createElement("div");
    here.className = "help";
    const tell = () => {
      const at = new Date(`${new Date().toISOString().slice(0, 10)}T${input.value.trim().padStart(5, "0")}:00Z`);
      here.textContent = Number.isNaN(at.getTime()) ? "\u00a0" : `${at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })} here`;
    };
    tell();
    input.addEventListener("input", tell);
    input.after(here);
  }
}
