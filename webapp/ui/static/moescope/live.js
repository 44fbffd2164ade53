// A fragment that comes again and again is morphed into the page (hx-swap="morph"), so that focus, selection and scroll
// stay where they are. So does what the reader or a script changed: folds that were opened, charts that were drawn, boxes
// that can be scrolled.
(() => {
  "use strict";
  const { callbacks } = Idiomorph.defaults;
  callbacks.beforeAttributeUpdated = (name) => name !== "open" && name !== "tabindex";
  callbacks.beforeNodeMorphed = (element) => element.nodeName !== "CANVAS";
})();
