// <input type="file" data-fills="ID">, which shows with scripts alone: puts the text of the chosen file into the field ID, as if
// it had been typed. A file of more characters than data-most is not read; #data-says takes the sentence.
(() => {
  "use strict";
  const say = (id, sentence) => {
    const list = Object.assign(document.createElement("ul"), { className: "errorlist" });
    list.append(Object.assign(document.createElement("li"), { textContent: sentence }));
    document.getElementById(id).replaceChildren(...(sentence ? [list] : []));
  };

  const fill = async (input) => {
    const [file] = input.files;
    if (!file) return;
    input.value = ""; // so that the same file can be chosen again
    const { fills, says, most } = input.dataset;
    if (file.size > Number(most)) {
      const [size, limit] = [file.size, Number(most)].map((count) => count.toLocaleString("en"));
      say(says, `${file.name} has ${size} bytes; at most ${limit} are read.`);
      return;
    }
    const field = document.getElementById(fills);
    field.value = await file.text();
    field.dispatchEvent(new Event("input", { bubbles: true }));
  };

  document.addEventListener("DOMContentLoaded", () => {
    for (const input of document.querySelectorAll("input[data-fills]")) {
      input.addEventListener("input", (event) => event.stopPropagation()); // only what is in the field is sent
      input.addEventListener("change", () => fill(input));
    }
  });
})();
