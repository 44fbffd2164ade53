// Light or dark: the system's choice until the reader makes one, which is then remembered.
// Loaded in the head, before anything is painted.
(() => {
  "use strict";
  const KEY = "moescope-theme";
  const root = document.documentElement;
  const systemIsDark = window.matchMedia("(prefers-color-scheme: dark)");
  const current = () => root.dataset.theme || (systemIsDark.matches ? "dark" : "light");

  const stored = localStorage.getItem(KEY);
  if (stored === "light" || stored === "dark") root.dataset.theme = stored;

  const label = (button) => {
    const other = current() === "dark" ? "light" : "dark";
    button.title = `Switch to ${other} colours`;
    button.setAttribute("aria-label", button.title);
  };

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme-switch");
    label(button);
    button.addEventListener("click", () => {
      root.dataset.theme = current() === "dark" ? "light" : "dark";
      localStorage.setItem(KEY, root.dataset.theme);
      label(button);
    });
    systemIsDark.addEventListener("change", () => label(button));
  });
})();
