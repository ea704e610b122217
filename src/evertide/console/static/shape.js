// The first rows of a collection in an order, and their changes, live, from the shape endpoint.
//
// 1. The shape follows changes only, and a subset request returns the first rows: a collection of any size costs one
//    page of rows.
// 2. A change names its row by a key. Applying a change twice has no effect, so changes that the subset has are not skipped.
// 3. When deletions leave the page half empty, the rows are requested again.
// 4. A shape that has ended (409), or that the server no longer knows, is requested again from the start.

import { ask, ServerError, ServerUnavailable } from "./api.js"
import { isNumberType } from "./format.js"

const BURST_MS = 400
const LOG_MAX = 200

export class LiveRows {
  constructor({ collection, where, order, limit, changed }) {
    this.rows = []
    this.schema = null
    this.error = null
    this.time = null
    this.isMore = false
    this.state = "loading"
    this.changes = 0
    this.log = [] // the last changes since the start, the newest first: {number, time, operation, value, before}
    this._definition = { table: `"${collection.replaceAll('"', '""')}"`, where, replica: "full", log: "changes_only" }
    this._order = order
    this._limit = limit
    this._changed = changed
    this._stop = new AbortController()
    this._follow()
  }

  close() {
    this._stop.abort()
  }

  async _follow() {
    for (let wait_s = 1; !this._stop.signal.aborted; wait_s = Math.min(wait_s * 2, 15)) {
      try {
        let place = await this._requestFirstRows()
        wait_s = 1
        while (place) place = await this._requestChanges(place)
      } catch (error) {
        if (this._stop.signal.aborted) return
        this.error = error
        this.state = error instanceof ServerUnavailable ? "away" : "failed"
        this._changed()
        if (error instanceof ServerError && error.status === 400) return // the same request fails again
      }
      await new Promise((done) => setTimeout(done, wait_s * 1000))
    }
  }

  async _requestFirstRows() {
    const { column, isDown } = this._order
    const order = `"${column.replaceAll('"', '""')}" ${isDown ? "desc nulls last" : "asc"}`
    const answer = await this._get({ offset: "now", subset__order_by: order, subset__limit: this._limit })
    const { metadata, data } = await answer.json()
    this.schema = JSON.parse(answer.headers.get("electric-schema") ?? "{}")
    this.rows = data.map((each) => ({ key: each.key, value: each.value, change: "" }))
    this.time = Number(metadata.database_lsn) - 1
    this.isMore = data.length >= this._limit
    this.state = "live"
    this.error = null
    this._changed()
    return { handle: answer.headers.get("electric-handle"), offset: answer.headers.get("electric-offset") }
  }

  async _requestChanges({ handle, offset }) {
    const answer = await this._get({ handle, offset, live: "true" }, 60_000)
    if (answer.status === 409) return null
    const messages = answer.status === 204 ? [] : await answer.json()
    const isChanged = messages.filter((each) => this._apply(each)).length > 0
    if (isChanged) {
      this.state = "live"
      this._changed()
      await new Promise((done) => setTimeout(done, BURST_MS)) // a busy collection is redrawn at most about twice a second
    }
    if (this.isMore && this.rows.length < this._limit / 2) return null
    return { handle, offset: answer.headers.get("electric-offset") ?? offset }
  }

  async _get(query, limit_ms = 20_000) {
    const answer = await ask("/v1/shape", { query: { ...this._definition, ...query }, signal: this._stop.signal, limit_ms })
    if (answer.ok || answer.status === 409) return answer
    const body = await answer.json().catch(() => null)
    const why = body?.errors && Object.entries(body.errors).map(([name, whys]) => `${name}: ${[whys].flat().join("; ")}`).join(" · ")
    throw new ServerError(answer.status, why ? { ...body, message: why } : body)
  }

  _apply({ key, value, old_value: before, headers }) {
    if (!headers.operation) return false
    this.changes += 1
    this.time = Math.max(this.time, Number(headers.lsn ?? 0) - 1)
    this.log.unshift({ number: this.changes, time: Number(headers.lsn ?? 0) - 1, operation: headers.operation, value, before })
    if (this.log.length > LOG_MAX) this.log.length = LOG_MAX
    const at = this.rows.findIndex((row) => row.key === key)
    if (at >= 0) this.rows.splice(at, 1)
    if (headers.operation === "delete") return true
    const row = { key, value, change: at >= 0 ? "updated" : "added", number: this.changes }
    const place = this.rows.findIndex((each) => this._compare(row.value, each.value) < 0)
    if (place < 0 && this.isMore) return true // behind the last row of the page
    this.rows.splice(place < 0 ? this.rows.length : place, 0, row)
    if (this.rows.length > this._limit) {
      this.rows.length = this._limit
      this.isMore = true
    }
    return true
  }

  _compare(one, other) {
    const { column, isDown } = this._order
    const [a, b] = [one[column], other[column]]
    if (a == null || b == null) return a == null ? (b == null ? 0 : 1) : -1
    const isNumber = isNumberType(this.schema?.[column]?.type)
    const less = isNumber ? Number(a) - Number(b) : a < b ? -1 : a > b ? 1 : 0
    return isDown ? -less : less
  }
}
