// What pages share beside htmx: copying a text, closing menus, scrolling, links into folds, short addresses.
(() => {
  "use strict";

  // <button data-copy="id"> copies the text of the element with that id, or what is typed into it.
  const copy = async (button) => {
    const said = button.textContent;
    const source = document.getElementById(button.dataset.copy);
    const text = (source.value ?? source.textContent).trim();
    button.textContent = (await copied(text)) ? "Copied" : "Not copied";
    setTimeout(() => { button.textContent = said; }, 1500);
  };

  const copied = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      return copiedByCommand(text);
    }
  };

  // Without HTTPS or leave, browsers keep the clipboard closed to scripts; the old command still works on a click.
  const copiedByCommand = (text) => {
    const field = document.createElement("textarea");
    const focused = document.activeElement;
    field.className = "visually-hidden";
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    focused?.focus();
    return done;
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) copy(button);
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      if (!menu.contains(event.target)) menu.open = false;
    }
  });

  // What scrolls sideways can be scrolled with the keyboard; what fits is no stop on its way.
  const markScrollers = () => {
    for (const box of document.querySelectorAll(".table-scroll, pre")) {
      if (box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };
  document.addEventListener("DOMContentLoaded", markScrollers);
  document.addEventListener("htmx:load", markScrollers);
  document.addEventListener("toggle", markScrollers, true);
  window.addEventListener("resize", markScrollers);

  // A link into a fold opens it; not every browser does so by itself.
  const reveal = () => {
    let fold = document.getElementById(location.hash.slice(1))?.closest("details");
    for (; fold; fold = fold.parentElement.closest("details")) fold.open = true;
  };
  document.addEventListener("DOMContentLoaded", reveal);
  window.addEventListener("hashchange", reveal);

  // Filters that are not set stay out of the address.
  document.addEventListener("htmx:configRequest", ({ detail }) => {
    if (detail.verb !== "get") return;
    for (const [name, value] of [...detail.formData]) if (value === "") detail.formData.delete(name);
  });

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      menu.open = false;
      menu.querySelector("summary").focus();
    }
  });
})();
