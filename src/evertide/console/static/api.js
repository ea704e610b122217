// Requests to the server that the page came from, and their errors.
//
// 1. Addresses are relative to the page: it also works below a path of a proxy.
// 2. A token is sent once the user has entered one. It stays in this tab (sessionStorage), and is never in an address.
// 3. Every failure is a `ServerError` (the server's error) or a `ServerUnavailable` (the server did not answer; `TimedOut` if it
//    did not answer in time).
// 4. After a 401 the user is asked for a token once; all requests that failed wait for it, and are repeated.

const TOKEN = "evertide.token"
const LIMIT_MS = 20_000

export class ServerError extends Error {
  constructor(status, body) {
    super(body?.message ?? body?.error ?? `The server answered ${status}.`)
    this.status = status
    this.code = body?.error_code ?? ""
    this.remedy = body?.remedy ?? ""
    this.body = body
  }

  get isMissing() {
    return this.status === 404 || this.status === 405
  }
}

export class ServerUnavailable extends Error {
  constructor(why) {
    super(`The server does not answer: ${why}`)
    this.remedy = "The server may be stopped or starting. The page continues when the server answers."
  }
}

export class TimedOut extends ServerUnavailable {
  constructor(limit_ms) {
    super("")
    this.message = `No answer came within ${limit_ms / 1000} s.`
    this.remedy = "The server may be busy: try again, or ask for less."
  }
}

const listeners = new Set()

// Called with true if a token is needed, and with false once one was entered.
export function onTokenWanted(listener) {
  listeners.add(listener)
}

let waiting = null

function waitForToken() {
  if (!waiting) {
    waiting = {}
    waiting.promise = new Promise((done) => (waiting.done = done))
    listeners.forEach((each) => each(true))
  }
  return waiting.promise
}

export function enterToken(text) {
  storeToken(text.trim())
  const prompt = waiting
  waiting = null
  listeners.forEach((each) => each(false))
  prompt?.done()
}

export function hasToken() {
  return Boolean(token())
}

function token() {
  try {
    return sessionStorage.getItem(TOKEN)
  } catch {
    return null
  }
}

function storeToken(text) {
  try {
    if (text) sessionStorage.setItem(TOKEN, text)
    else sessionStorage.removeItem(TOKEN)
  } catch {
    // A browser without storage asks again.
  }
}

export function address(path, query = {}) {
  const url = new URL(path.replace(/^\//, ""), document.baseURI.split("#")[0])
  for (const [name, value] of Object.entries(query)) if (value != null && value !== "") url.searchParams.set(name, value)
  return url
}

// Sends a request and returns the answer, of any type. `signal` ends it; if `limit_ms` is 0, it has no time limit.
export async function ask(path, { method = "GET", query, body, headers = {}, signal, limit_ms = LIMIT_MS } = {}) {
  for (;;) {
    const used = token()
    const limits = [signal, limit_ms && AbortSignal.timeout(limit_ms)].filter(Boolean)
    let answer
    try {
      answer = await fetch(address(path, query), {
        method,
        headers: { ...headers, ...(used && { Authorization: `Bearer ${used}` }), ...(body != null && { "Content-Type": "application/json" }) },
        body: body == null ? undefined : JSON.stringify(body),
        signal: limits.length ? AbortSignal.any(limits) : undefined,
        cache: "no-store",
      })
    } catch (error) {
      if (signal?.aborted) throw error
      throw error.name === "TimeoutError" ? new TimedOut(limit_ms) : new ServerUnavailable("the connection failed")
    }
    noteClock(answer.headers.get("date"))
    if (answer.status !== 401) return answer
    if (token() === used) await waitForToken()
    if (signal?.aborted) throw signal.reason
  }
}

export async function get(path, query, options = {}) {
  return readAnswer(await ask(path, { query, ...options }))
}

export async function post(path, body, options = {}) {
  return readAnswer(await ask(path, { method: "POST", body, ...options }))
}

export async function remove(path) {
  return readAnswer(await ask(path, { method: "DELETE" }))
}

async function readAnswer(answer) {
  let body = null
  try {
    body = answer.status === 204 ? null : JSON.parse(await answer.text(), keepLargeIntegers)
  } catch {
    if (answer.ok) throw new ServerError(answer.status, { message: "The answer is not JSON. Is this an Evertide server?" })
  }
  if (!answer.ok) throw new ServerError(answer.status, body)
  return body
}

// An integer that JavaScript would round stays a text.
function keepLargeIntegers(_, value, context) {
  return typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value) && context?.source ? context.source : value
}

let skew_s = 0

// Ages are computed with the server's clock, because the clock of this machine may be wrong.
function noteClock(date) {
  const server_s = date ? Date.parse(date) / 1000 : NaN
  if (!Number.isNaN(server_s)) skew_s = Math.abs(server_s - Date.now() / 1000) > 3 ? server_s - Date.now() / 1000 : 0
}

export function now_s() {
  return Date.now() / 1000 + skew_s
}
