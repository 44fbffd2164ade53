// <form data-upload>, sent by htmx: a file that is too large is refused before it is sent, the sending is shown as it
// goes, and what breaks it off is said. [data-said] takes the sentence, [data-sent] is the progress.
(() => {
  "use strict";
  const formOf = ({ target }) => target.closest?.("form[data-upload]");
  const say = (form, sentence) => {
    const place = form.querySelector("[data-said]");
    place.textContent = sentence;
    place.hidden = !sentence;
  };

  const tooLarge = (form) => {
    const input = form.querySelector("input[type=file]");
    const bytes = [...input.files].reduce((sum, file) => sum + file.size, 0);
    const { maxBytes, maxSize } = input.dataset;
    if (bytes <= Number(maxBytes)) return "";
    return `${input.files[0].name} has ${bytes.toLocaleString("en")} bytes; at most ${maxSize} are accepted.`;
  };

  const show = (form, share) => {
    const bar = form.querySelector("[data-sent]");
    bar.hidden = share === null;
    if (share === null || share === 1) bar.removeAttribute("value"); // all is sent: how long reading takes is not known
    else bar.value = share;
  };

  document.addEventListener("change", (event) => {
    const form = formOf(event);
    if (form && event.target.type === "file") say(form, tooLarge(form));
  });
  document.addEventListener("htmx:beforeRequest", (event) => {
    const form = formOf(event);
    if (!form) return;
    const sentence = tooLarge(form);
    say(form, sentence);
    if (sentence) event.preventDefault();
  });
  document.addEventListener("htmx:xhr:progress", (event) => {
    const form = formOf(event);
    if (form && event.detail.lengthComputable) show(form, event.detail.loaded / event.detail.total);
  });
  document.addEventListener("htmx:afterRequest", (event) => {
    const form = formOf(event);
    if (form) show(form, null);
  });
  document.addEventListener("htmx:sendError", (event) => {
    const form = formOf(event);
    if (form) say(form, "The file did not arrive: the connection broke off. Nothing was stored.");
  });
  document.addEventListener("htmx:responseError", (event) => {
    const form = formOf(event);
    if (!form) return;
    const { status } = event.detail.xhr;
    const large = "The server takes no file as large as this one.";
    say(form, status === 413 ? large : `The server could not take the file (${status}). Nothing was stored.`);
  });
})();
