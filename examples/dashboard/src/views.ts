// The views of `evertide demo` that this page follows, and how.

import { ShapeStream, isChangeMessage } from "@electric-sql/client"
import { useShape } from "@electric-sql/react"
import { useEffect, useRef, useState } from "react"

const asked = new URLSearchParams(location.search).get("server")
const server = asked ?? import.meta.env.VITE_EVERTIDE_URL ?? "http://127.0.0.1:3000"
const url = `${server}/v1/shape`

// Values have the types of the view's columns: BIGINT is a bigint, DOUBLE a number, DECIMAL and TIMESTAMP are texts.
export type Category = { category: bigint; average: number; auctions: bigint }
export type Channel = { channel: string; bids: bigint; bidders: bigint; auctions: bigint }
export type Seller = { name: string; city: string; state: string; auction: bigint }
export type LargeBid = { auction: bigint; bidder: bigint; euros: string; channel: string; dateTime: string }

export const useCategories = () => useShape<Category>({ url, params: { table: "category_prices" } })

export const useChannels = () => useShape<Channel>({ url, params: { table: "channels" } })

// A where clause: only the rows of one state come here.
export const useSellers = (state: string) =>
  useShape<Seller>({ url, params: { table: "local_sellers", where: "state = $1", params: [state] } })

// A view that only grows: no snapshot, only what is added from now on.
export function useLargeBids(count: number): LargeBid[] {
  const [bids, setBids] = useState<LargeBid[]>([])
  useEffect(() => {
    const ending = new AbortController()
    const stream = new ShapeStream<LargeBid>({
      url,
      params: { table: "large_bids" },
      log: "changes_only",
      offset: "now",
      signal: ending.signal,
    })
    stream.subscribe((messages) => {
      const added = messages
        .filter(isChangeMessage)
        .filter((message) => message.headers.operation === "insert")
        .map((message) => message.value as LargeBid)
      if (added.length) setBids((before) => [...added.reverse(), ...before].slice(0, count))
    })
    return () => ending.abort()
  }, [count])
  return bids
}

// How much a growing number grows in a second, by the last ten: a point for each second of the last two minutes.
export function useRate(total: number, seconds = 10, points = 120): number[] {
  const latest = useRef(total)
  const [rates, setRates] = useState<number[]>([])
  latest.current = total
  useEffect(() => {
    const totals: number[] = []
    const timer = setInterval(() => {
      if (!latest.current) return // nothing is there yet, and the first content is no growth
      totals.push(latest.current)
      const window = totals.slice(-seconds - 1)
      const grown = window.at(-1)! - window[0]!
      setRates((known) => [...known, Math.max(0, grown / Math.max(1, window.length - 1))].slice(-points))
      if (totals.length > seconds) totals.shift()
    }, 1000)
    return () => clearInterval(timer)
  }, [seconds, points])
  return rates
}
