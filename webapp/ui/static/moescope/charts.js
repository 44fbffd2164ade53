// Draws every <canvas data-chart="ID"> from the Chart.js configuration in <script type="application/json" id="ID">.
// The contract (colour tokens, hatching, options.unit) stands in webapp/ui/charts.py.
(() => {
  "use strict";
  const drawn = new Map(); // canvas -> { chart, text: the configuration that it draws }

  // A token may be any CSS colour expression; an element's computed colour is its value in the current theme.
  const probe = document.createElement("span");
  const colour = (expression) => {
    probe.style.color = expression;
    return getComputedStyle(probe).color;
  };

  const hatched = (expression) => {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const pen = tile.getContext("2d");
    pen.strokeStyle = colour(expression);
    pen.lineWidth = 2;
    pen.lineCap = "square";
    for (const shift of [-8, 0, 8]) {
      pen.beginPath();
      pen.moveTo(shift, 8);
      pen.lineTo(shift + 8, 0);
      pen.stroke();
    }
    return pen.createPattern(tile, "repeat");
  };

  const withColours = (value) => {
    if (Array.isArray(value)) return value.map(withColours);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, withColours(item)]));
    }
    if (typeof value !== "string") return value;
    if (value.startsWith("hatched var(")) return hatched(value.slice("hatched ".length));
    return value.startsWith("var(") ? colour(value) : value;
  };

  // The same figures as webapp/ui/formatting.py writes.
  const threeDigits = (value) => {
    if (value === 0) return "0";
    const decimals = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(Number(value.toPrecision(3))))));
    return value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
  };
  const scaled = (units) => (value) => {
    let index = 0;
    while (index < units.length - 1 && Math.abs(value) >= 999.5) { value /= 1000; index += 1; }
    return `${threeDigits(value)}\u00a0${units[index]}`;
  };
  const time = scaled(["µs", "ms", "s"]);
  const FORMATS = {
    us: time,
    ms: (value) => time(value * 1000),
    bytes: scaled(["B", "kB", "MB", "GB", "TB", "PB"]),
    percent: (value) => `${(value * 100).toFixed(Math.abs(value) < 0.0995 ? 1 : 0)}%`,
    count: (value) => value.toLocaleString("en", { maximumFractionDigits: 0 }),
    number: threeDigits,
  };
  // A tick is a round number already, so it needs no trailing zeros.
  const asTick = (format) => (value) => format(value).replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, "");

  // Percentages of one axis have as many decimals as its ticks lie apart.
  const percentTick = (value, _, ticks) => {
    const apart = ticks.length > 1 ? Math.abs(ticks[1].value - ticks[0].value) * 100 : 1;
    const isWhole = (decimals) => Math.abs(apart * 10 ** decimals - Math.round(apart * 10 ** decimals)) < 1e-6;
    return `${(value * 100).toFixed([0, 1, 2].find(isWhole) ?? 3)}%`;
  };

  // Each point's label above it or, where another label is, below it; none where both places are taken.
  const POINT_LABELS = {
    id: "pointLabels",
    afterDatasetsDraw: (chart) => {
      const { ctx, chartArea: area } = chart;
      const taken = [];
      const isFree = (box) => !taken.some((one) =>
        box.left < one.right && one.left < box.right && box.top < one.bottom && one.top < box.bottom);
      ctx.save();
      ctx.font = `11px ${Chart.defaults.font.family}`;
      ctx.fillStyle = Chart.defaults.color;
      ctx.strokeStyle = chart.options.pointLabels;
      ctx.lineWidth = 3;
      ctx.textBaseline = "top";
      for (const { data: points, index } of chart.getSortedVisibleDatasetMetas()) {
        points.forEach(({ x, y }, place) => {
          const { label } = chart.data.datasets[index].data[place];
          const { width } = ctx.measureText(label);
          const left = Math.min(Math.max(x - width / 2, area.left), area.right - width);
          const boxes = [y - 17, y + 6].map((top) => ({ left, right: left + width, top, bottom: top + 12 }));
          const box = boxes.find((one) => one.top >= area.top && isFree(one));
          if (!box) return;
          taken.push(box);
          ctx.strokeText(label, box.left, box.top); // readable over a line
          ctx.fillText(label, box.left, box.top);
        });
      }
      ctx.restore();
    },
  };

  const withUnit = (config) => {
    const format = FORMATS[config.options?.unit];
    if (!format) return config;
    const { options } = config;
    const axis = options.indexAxis === "y" ? "x" : "y";
    const formats = { [axis]: format, ...(options.xUnit && { x: FORMATS[options.xUnit] }) };
    options.scales ??= {};
    for (const name of ["x", "y"]) options.scales[name] ??= {};
    for (const name of Object.keys(formats)) {
      const ticks = (options.scales[name].ticks ??= {});
      ticks.callback ??= formats[name] === FORMATS.percent ? percentTick : asTick(formats[name]);
    }
    const value = ({ raw, parsed }) => {
      if (Array.isArray(raw)) return format(raw[1] - raw[0]);
      return ["x", "y"].filter((name) => formats[name]).map((name) => formats[name](parsed[name])).join(", ");
    };
    options.plugins ??= {};
    const tooltip = (options.plugins.tooltip ??= {});
    tooltip.callbacks ??= { label: (item) => ` ${item.dataset.label}  ${value(item)}` };
    if (options.xUnit) tooltip.callbacks.title ??= ([item]) => item?.raw.title ?? "";
    if (options.pointLabels) config.plugins = [POINT_LABELS];
    return config;
  };

  const setDefaults = () => {
    const style = getComputedStyle(document.body);
    Chart.defaults.animation = false;
    Chart.defaults.responsive = true;
    Chart.defaults.maintainAspectRatio = false;
    Chart.defaults.font.family = style.fontFamily;
    Chart.defaults.font.size = 12;
    Chart.defaults.color = colour("var(--muted)");
    Chart.defaults.borderColor = colour("var(--line)");
    Chart.defaults.plugins.legend.position = "bottom";
    Chart.defaults.plugins.legend.labels.boxWidth = 10;
    Chart.defaults.plugins.legend.labels.boxHeight = 10;
    Chart.defaults.plugins.tooltip.backgroundColor = colour("var(--ink)");
    Chart.defaults.plugins.tooltip.titleColor = colour("var(--paper)");
    Chart.defaults.plugins.tooltip.bodyColor = colour("var(--paper)");
    Chart.defaults.plugins.tooltip.boxPadding = 4;
  };

  const textOf = (canvas) => document.getElementById(canvas.dataset.chart).textContent;

  const forget = (canvas) => {
    drawn.get(canvas)?.chart.destroy();
    drawn.delete(canvas);
  };

  // Draw what is new on the page or has another configuration than before.
  const draw = () => {
    for (const [canvas, { text }] of drawn) if (!canvas.isConnected || textOf(canvas) !== text) forget(canvas);
    const waiting = [...document.querySelectorAll("canvas[data-chart]")].filter((canvas) => !drawn.has(canvas));
    if (!waiting.length) return;
    document.body.append(probe);
    setDefaults();
    for (const canvas of waiting) {
      const text = textOf(canvas);
      drawn.set(canvas, { chart: new Chart(canvas, withUnit(withColours(JSON.parse(text)))), text });
    }
    probe.remove();
  };

  const redraw = () => {
    [...drawn.keys()].forEach(forget);
    draw();
  };

  document.addEventListener("DOMContentLoaded", draw);
  document.addEventListener("htmx:load", draw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  // Chart.js sizes canvases for the screen; paper is narrower.
  window.addEventListener("beforeprint", () => drawn.forEach(({ chart }) => chart.resize()));
})();
