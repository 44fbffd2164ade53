// Greys out what no machine of the pool can run. Why stands in the list that comes with each look at the form; what is
// chosen stays as it is, since a browser would leave a greyed-out choice out of what it sends.
(() => {
  "use strict";

  const grey = () => {
    const missing = [...document.querySelectorAll("#missing [data-everywhere]")];
    for (const name of ["experts", "fusion"]) {
      for (const option of document.getElementById(`id_${name}`)?.options ?? []) {
        const found = missing.find(({ dataset }) => dataset.field === name && dataset.value === option.value);
        option.disabled = Boolean(found) && !option.selected;
        option.title = found?.textContent.trim() ?? "";
      }
    }
  };
  document.addEventListener("DOMContentLoaded", grey);
  document.addEventListener("htmx:load", grey);
})();
