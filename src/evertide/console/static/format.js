// Formats numbers, sizes, durations and times for people.

const WHOLE = new Intl.NumberFormat("en")
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 })
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" })
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" })
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]

export const NOTHING = "–"

export function count(value) {
  return value == null ? NOTHING : WHOLE.format(value)
}

export function brief(value) {
  if (value == null) return NOTHING
  return Math.abs(value) < 10_000 ? WHOLE.format(Math.abs(value) < 10 ? Math.round(value * 10) / 10 : Math.round(value)) : SHORT.format(value)
}

export function bytes(value) {
  if (value == null) return NOTHING
  let at = 0
  let left = value
  while (left >= 1024 && at < UNITS.length - 1) {
    left /= 1024
    at += 1
  }
  return `${at === 0 || left >= 100 ? Math.round(left) : left.toFixed(1)} ${UNITS[at]}`
}

export function seconds(value) {
  if (value == null) return NOTHING
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`
  if (value < 9.95) return `${value.toFixed(1)} s`
  if (value < 99.5) return `${Math.round(value)} s`
  if (value < 5970) return `${Math.round(value / 60)} min`
  return value < 172_800 ? `${Math.round(value / 3600)} h` : `${Math.round(value / 86_400)} days`
}

export function clock(at_s) {
  return at_s ? CLOCK.format(at_s * 1000) : NOTHING
}

export function moment(at_s) {
  if (!at_s) return NOTHING
  const isToday = new Date(at_s * 1000).toDateString() === new Date().toDateString()
  return isToday ? clock(at_s) : `${DAY.format(at_s * 1000)}, ${clock(at_s)}`
}

export function ago(at_s, now_s) {
  return at_s ? `${seconds(Math.max(0, now_s - at_s))} ago` : NOTHING
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`
}

// The last transaction that a collection contains.
export function lastTime(upper) {
  return upper > 0 ? count(upper - 1) : "none"
}

// A cell: any JSON value, in one line.
export function cell(value) {
  if (value == null) return "NULL"
  return typeof value === "object" ? JSON.stringify(value) : String(value)
}

const NUMBER_TYPES = /^(tinyint|smallint|int|integer|bigint|float|double|real|decimal|numeric|int2|int4|int8|float4|float8|int64|int32|int16|int8|uint\d+|decimal128)\b/i

export function isNumberType(type) {
  return NUMBER_TYPES.test(String(type ?? ""))
}
