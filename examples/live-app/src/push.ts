// Pushes to Evertide: one after the other, and each of them takes effect once.

export const SERVER =
  new URLSearchParams(location.search).get("server") ?? import.meta.env.VITE_EVERTIDE_URL ?? "http://127.0.0.1:8080"

type Rows = Record<string, { rows: object[]; deletes: unknown[] }>

const producer = `live-app-${crypto.getRandomValues(new Uint32Array(4)).join("-")}`
let sequence = 0
let previous: Promise<unknown> = Promise.resolve()

/** Pushes rows as one transaction; returns the number to wait for, or null if the push changed nothing. */
export function push(tables: Rows): Promise<number | null> {
  const pushed = previous.then(() => send(tables, ++sequence))
  previous = pushed.catch(() => undefined)
  return pushed
}

async function send(tables: Rows, number: number): Promise<number | null> {
  const request = {
    method: "POST",
    headers: {
      "Content-Type": "application/json",
      "Evertide-Producer": producer,
      "Evertide-Sequence": String(number),
    },
    body: JSON.stringify({ tables }),
  }
  for (let attempt = 0; ; attempt++) {
    const answer = await fetch(`${SERVER}/v1/transactions`, request).catch(() => null)
    if (answer?.ok) return (await answer.json()).txid
    // Without an answer, and after 502 to 504, the rows may be there or not: the same number again applies them once.
    if (answer && (answer.status < 502 || answer.status > 504)) throw new Error((await answer.json()).message)
    await new Promise((resolve) => setTimeout(resolve, Math.min(250 * 2 ** attempt, 8000)))
  }
}
