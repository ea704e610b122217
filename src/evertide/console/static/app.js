// The page: its frame, the current screen, and everything that all screens share.

import { enterToken, hasToken, onTokenWanted } from "./api.js"
import { onCursorMove } from "./charts.js"
import { h, render } from "./dom.js"
import { count, moment, seconds } from "./format.js"
import { icon } from "./icons.js"
import { model, refresh, setNeeds, start } from "./live.js"
import { onWidthChange } from "./measure.js"
import { badge, button, errorBox } from "./parts.js"
import checkpoints from "./screens/checkpoints.js"
import collection from "./screens/collection.js"
import collections from "./screens/collections.js"
import errors from "./screens/errors.js"
import flow from "./screens/flow.js"
import journal from "./screens/journal.js"
import logs from "./screens/logs.js"
import overview from "./screens/overview.js"
import query from "./screens/query.js"
import reference from "./screens/reference.js"
import shapes from "./screens/shapes.js"
import unknown from "./screens/unknown.js"

// A screen: {title, needs, open(pieces of the address, redraw) -> {view(model), close?()}}
const SCREENS = { overview, flow, collections, collection, query, checkpoints, journal, shapes, errors, logs, api: reference }
const MENU = [
  ["Monitor", [["overview", "Overview", "overview"], ["flow", "Flow", "flow"], ["collections", "Collections", "collections"]]],
  ["Query", [["query", "SQL", "query"], ["api", "API", "reference"]]],
  ["Storage", [["checkpoints", "Checkpoints", "checkpoints"], ["journal", "Journal", "journal"], ["shapes", "Shapes", "shapes"]]],
  ["Problems", [["errors", "Errors", "errors"], ["logs", "Logs", "logs"]]],
]
const STALE_S = 15
const root = document.getElementById("app")

let shown = { address: null, name: "", title: "", screen: null }
let isMenuOpen = false
let isTokenWanted = false
let hadToken = false
let isDrawing = false

function redraw() {
  if (isDrawing) return
  isDrawing = true
  requestAnimationFrame(() => {
    isDrawing = false
    render(root, frame())
  })
}

function openScreen() {
  const address = location.hash.slice(1) || "/overview"
  if (address === shown.address) return
  shown.screen?.close?.()
  const before = shown.name
  const [name, ...pieces] = address.slice(1).split("/").map(decodePiece)
  const found = Object.hasOwn(SCREENS, name) ? { name, kind: SCREENS[name], pieces } : { name: "unknown", kind: unknown, pieces: [address] }
  shown = { address, name: found.name, title: found.kind.title, screen: found.kind.open(found.pieces, redraw) }
  isMenuOpen = false
  document.title = `${found.kind.title} · Evertide`
  setNeeds(found.kind.needs ?? [])
  redraw()
  if (shown.name === before && name === "flow") return // the graph stays where it is
  requestAnimationFrame(() => document.getElementById("content")?.focus({ preventScroll: true }))
  scrollTo(0, 0)
}

function decodePiece(piece) {
  try {
    return decodeURIComponent(piece)
  } catch {
    return piece
  }
}

function frame() {
  return [
    h("a", { key: "skip", class: "skip", href: "#content", onclick: skip }, "Skip to the content"),
    h("div", { key: "frame", class: `frame ${isMenuOpen ? "with-menu" : ""}` }, sidebar(), h("div", { class: "stage" }, head(), banner(), content())),
    isTokenWanted && tokenPrompt(),
  ]
}

function skip(event) {
  event.preventDefault()
  document.getElementById("content").focus()
}

function sidebar() {
  return h(
    "aside",
    { class: "sidebar" },
    h("a", { class: "brand", href: "#/overview" }, h("img", { src: "console/tide.svg", alt: "", width: 28, height: 28 }), "Evertide"),
    h(
      "nav",
      { "aria-label": "Screens", id: "menu" },
      MENU.map(([group, entries]) =>
        h("div", { class: "menu-group" }, h("h2", null, group), h("ul", null, entries.map(entry))),
      ),
    ),
    h("div", { class: "sidebar-foot" }, hasToken() && button("Forget the token", forget), themeChooser()),
    h("svg", { class: "swell", viewBox: "0 0 220 60", preserveAspectRatio: "none", "aria-hidden": "true" },
      h("path", { d: "M0 30C30 10 60 10 92 28s70 22 128-4v36H0z" }),
      h("path", { d: "M0 44c40-16 70-14 104-4s74 12 116-6v26H0z" }),
    ),
  )
}

function forget() {
  hadToken = false
  enterToken("")
  refresh()
}

function entry([name, title, picture]) {
  const isHere = shown.name === name || (name === "collections" && shown.name === "collection")
  const problems = name === "errors" ? model.status?.problems?.length ?? 0 : 0
  return h("li", null,
    h("a", { href: `#/${name}`, "aria-current": isHere ? "page" : null, onclick: () => { isMenuOpen = false; redraw() } }, icon(picture), title,
      problems > 0 && h("span", { class: "count", "aria-label": `${problems} problems` }, count(problems))))
}

function themeChooser() {
  const chosen = document.documentElement.dataset.theme ?? "auto"
  const choose = (to) => () => {
    if (to === "auto") delete document.documentElement.dataset.theme
    else document.documentElement.dataset.theme = to
    try {
      localStorage.setItem("evertide.theme", to)
    } catch {
      // The choice then holds until the page is closed.
    }
    redraw()
  }
  return h("div", { class: "chooser", role: "group", "aria-label": "Colours" },
    ["auto", "light", "dark"].map((one) => button(one, choose(one), { "aria-pressed": String(chosen === one), key: one })))
}

function head() {
  const { status, connection } = model
  return h(
    "header",
    { class: "head" },
    button(icon(isMenuOpen ? "close" : "menu"), () => { isMenuOpen = !isMenuOpen; redraw() }, { class: "menu-button", "aria-label": "Menu", "aria-expanded": String(isMenuOpen), "aria-controls": "menu" }),
    h("h1", null, shown.title),
    h("div", { class: "head-facts" },
      status && h("span", { class: "fact" }, "time ", h("b", { class: "number", "data-time": status.time }, count(status.time))),
      status && badge(connection.mode === "away" ? "" : status.state, connection.mode === "away" ? `was ${status.state}` : status.state),
      h("span", { class: `connection ${connection.mode}`, role: "status" }, h("span", { class: "dot-mark", "aria-hidden": "true" }), describeConnection(connection)),
    ),
  )
}

function describeConnection({ mode }) {
  return { live: "live", polling: "polling every 2 s", away: "server does not answer", starting: "connecting" }[mode]
}

function banner() {
  const { connection, now_s: now, errors: failed } = model
  const age_s = connection.seen_s ? now - connection.seen_s : 0
  if (connection.mode === "away") {
    const old = connection.seen_s ? `This page shows the state of ${moment(connection.seen_s)}, ${seconds(age_s)} ago.` : "The server has not answered yet."
    return h("div", { class: "banner bad", role: "alert" }, h("strong", null, "The server does not answer. "), `${old} The page continues when the server answers.`)
  }
  if (connection.seen_s && age_s > STALE_S) {
    return h("div", { class: "banner waiting", role: "status" }, h("strong", null, "These values are old. "), `The last answer came ${seconds(age_s)} ago.`)
  }
  return failed.status ? h("div", { class: "banner-problem" }, errorBox(failed.status, "the status")) : null
}

function content() {
  return h("main", { id: "content", tabindex: -1, key: shown.name === "flow" ? "flow" : shown.address, "data-screen": shown.name }, shown.screen?.view(model))
}

function tokenPrompt() {
  const submit = (event) => {
    event.preventDefault()
    hadToken = true
    enterToken(new FormData(event.target).get("token"))
    refresh()
  }
  return h(
    "div",
    { key: "token", class: "veil" },
    h(
      "form",
      { class: "card token", role: "dialog", "aria-modal": "true", "aria-labelledby": "token-title", onsubmit: submit },
      h("h2", { id: "token-title" }, "Enter an access token"),
      h("p", null, hadToken ? "The server does not know this token, or the token does not allow this request." : "This server needs an access token. Ask the operator of the server for one."),
      h("label", null, "Token", h("input", { name: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true, once: (node) => requestAnimationFrame(() => node.focus()) })),
      h("p", { class: "quiet" }, "The token is kept in this tab only, until the tab is closed."),
      h("button", { type: "submit", class: "primary" }, "Continue"),
    ),
  )
}

onTokenWanted((isWanted) => {
  isTokenWanted = isWanted
  redraw()
})
onWidthChange(redraw)
onCursorMove(redraw)
addEventListener("hashchange", openScreen)
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && isMenuOpen) {
    isMenuOpen = false
    redraw()
  }
})
openScreen()
start(redraw)
