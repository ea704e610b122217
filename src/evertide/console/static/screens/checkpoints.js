// Checkpoints: durable copies of all state, from which the pipeline continues after a crash.

import { get, post } from "../api.js"
import { Poll } from "../poll.js"
import { plot } from "../charts.js"
import { h } from "../dom.js"
import { ago, bytes, count, moment } from "../format.js"
import { button, card, errorBox, loadingOrError, table, tile } from "../parts.js"

export default {
  title: "Checkpoints",
  open: (_, redraw) => {
    const poll = new Poll(() => get("/v1/checkpoints"), redraw)
    const creation = { isBusy: false, error: null, words: "" }
    return { view: (model) => view(model, poll, creation, redraw), close: () => poll.close() }
  },
}

function view({ status, now_s: now }, poll, creation, redraw) {
  if (!poll.value) return loadingOrError(poll.error, "the checkpoints")
  const all = poll.value.checkpoints
  const newest = all[0]
  const sized = all.filter((one) => one.bytes != null).reverse()
  const since = newest && status ? status.time - newest.time + 1 : null
  return [
    errorBox(poll.error, "the checkpoints"),
    h("dl", { class: "tiles" },
      tile("Newest", newest ? count(newest.number) : "none", newest?.made_at_s ? ago(newest.made_at_s, now) : ""),
      tile("To replay", since == null ? "–" : count(Math.max(0, since)), "transactions that a restart would replay"),
      tile("Size", bytes(newest?.bytes), newest?.files != null ? `${count(newest.files)} files, most of them shared with older ones` : ""),
    ),
    sized.length > 2 && card("Size", null, plot({
      name: "checkpoints", label: "Size of each checkpoint", kind: "bars", height: 150, formatY: bytes,
      points: sized.map((one) => ({ x: String(one.number), y: one.bytes, words: `checkpoint ${one.number}, at time ${count(one.time)}: ${bytes(one.bytes)}` })),
    })),
    card("Kept checkpoints", { class: "flush", actions: button(creation.isBusy ? "Making a checkpoint…" : "Make a checkpoint", () => make(creation, poll, redraw), { disabled: creation.isBusy }) },
      creation.error && h("div", { class: "inset" }, errorBox(creation.error, "a new checkpoint")),
      creation.words && h("p", { class: "inset quiet", role: "status" }, creation.words),
      table({
        label: "Checkpoints",
        rows: all,
        keyOf: (row) => row.number,
        none: "No checkpoint yet; a running pipeline makes them.",
        columns: [
          { name: "number", isNumber: true, show: (row) => count(row.number) },
          { name: "time", isNumber: true, show: (row) => count(row.time) },
          { name: "made", show: (row) => moment(row.made_at_s) },
          { name: "files", isNumber: true, show: (row) => count(row.files) },
          { name: "bytes", title: "size", isNumber: true, show: (row) => bytes(row.bytes) },
          { name: "generation", isNumber: true, show: (row) => count(row.generation) },
        ],
      })),
  ]
}

async function make(creation, poll, redraw) {
  Object.assign(creation, { isBusy: true, error: null, words: "" })
  redraw()
  try {
    const entry = await post("/v1/checkpoints", undefined, { limit_ms: 300_000 })
    creation.words = `Checkpoint ${count(entry.number)} contains everything up to time ${count(entry.time)}.`
  } catch (error) {
    creation.error = error
  }
  creation.isBusy = false
  redraw()
  poll.now()
}
