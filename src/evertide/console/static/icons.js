// Small pictures, drawn with a line.

import { h } from "./dom.js"

const PATHS = {
  overview: "M2 9c2-3 4-3 6 0s4 3 6 0M2 13c2-3 4-3 6 0s4 3 6 0M2 5c2-3 4-3 6 0s4 3 6 0",
  flow: "M2 4h4v3H2zM10 2h4v3h-4zM10 10h4v3h-4zM6 5.5c3 0 1-2 4-2M6 5.5c3 0 1 6 4 6",
  collections: "M2 3h12v10H2zM2 6.5h12M2 10h12M6.5 6.5V13",
  checkpoints: "M4 14V2h8l-2 3 2 3H4",
  journal: "M4 2h8v12H4zM6.5 5h3M6.5 8h3M6.5 11h3",
  shapes: "M8 2l6 10H2zM8 6v3",
  errors: "M8 1.8l6.4 11.4H1.6zM8 6v3.4M8 11.3v.2",
  logs: "M2 4h12M2 8h8M2 12h10",
  query: "M2.5 4l4 4-4 4M8 12.5h5.5",
  reference: "M5.5 4L2 8l3.5 4M10.5 4L14 8l-3.5 4",
  menu: "M2 4h12M2 8h12M2 12h12",
  close: "M3.5 3.5l9 9M12.5 3.5l-9 9",
  source: "M2 8h8M7 5l3 3-3 3M12.5 2.5v11",
  table: "M2 3h12v10H2zM2 6.5h12M6.5 6.5V13",
  view: "M1.5 8C4 4 12 4 14.5 8 12 12 4 12 1.5 8zM8 6.2a1.8 1.8 0 100 3.6 1.8 1.8 0 000-3.6z",
  sink: "M3.5 2.5v11M6 8h8M11 5l3 3-3 3",
}

export function icon(name) {
  return h("svg", { class: "icon", viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" }, h("path", { d: PATHS[name] }))
}
