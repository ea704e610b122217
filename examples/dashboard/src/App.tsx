import { type ReactNode, useState } from "react"
import { Bars, Sparkline } from "./charts"
import { useCategories, useChannels, useLargeBids, useRate, useSellers } from "./views"

const STATES = { OR: "Oregon", ID: "Idaho", CA: "California" }
const SHOWN = 8

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 })
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 })
const sum = (values: bigint[]) => values.reduce((total, value) => total + Number(value), 0)

export function App() {
  const categories = useCategories()
  const channels = useChannels()
  const largeBids = useLargeBids(SHOWN)
  const bids = sum(channels.data.map((row) => row.bids))
  const rates = useRate(bids)
  const error = categories.error || channels.error
  const byBids = channels.data.toSorted((one, other) => Number(other.bids - one.bids))
  const byCategory = categories.data.toSorted((one, other) => Number(one.category - other.category))

  return (
    <main>
      <header>
        <div>
          <h1>The auction house</h1>
          <p>Views of Evertide, live in the browser</p>
        </div>
        <Status isLoading={categories.isLoading || channels.isLoading} error={error} />
      </header>

      <section className="tiles">
        <Tile name="bids" value={whole.format(bids)} label="Bids" />
        <Tile name="rate" value={whole.format(rates.at(-1) ?? 0)} label="Bids a second" />
        <Tile name="auctions" value={whole.format(sum(byCategory.map((row) => row.auctions)))} label="Auctions with bids" />
        <Tile name="categories" value={whole.format(byCategory.length)} label="Categories" />
      </section>

      <section className="panels">
        <Panel title="Bids a second" note="channels" isWide>
          <Sparkline points={rates} title="Bids a second, over the last two minutes" />
        </Panel>

        <Panel title="Average closing price" note="category_prices">
          <Bars
            title="Average closing price of each category"
            bars={byCategory.map((row) => ({
              label: `Category ${row.category}`,
              value: row.average,
              text: short.format(row.average),
            }))}
          />
        </Panel>

        <Panel title="Channels" note="channels">
          <table data-view="channels">
            <thead>
              <tr>
                <th>Channel</th>
                <th className="number">Bids</th>
                <th className="number">Bidders</th>
                <th className="number">Auctions</th>
              </tr>
            </thead>
            <tbody>
              {byBids.map((row) => (
                <tr key={row.channel}>
                  <td>{row.channel}</td>
                  <td className="number">{whole.format(row.bids)}</td>
                  <td className="number">{whole.format(row.bidders)}</td>
                  <td className="number">{whole.format(row.auctions)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Panel>

        <Panel title="Large bids, as they come" note="large_bids, changes only">
          <table data-view="large_bids">
            <thead>
              <tr>
                <th>Channel</th>
                <th className="number">Auction</th>
                <th className="number">Bidder</th>
                <th className="number">Euros</th>
              </tr>
            </thead>
            <tbody>
              {largeBids.map((row, at) => (
                <tr key={at}>
                  <td>{row.channel}</td>
                  <td className="number">{String(row.auction)}</td>
                  <td className="number">{String(row.bidder)}</td>
                  <td className="number">{whole.format(Number(row.euros))}</td>
                </tr>
              ))}
            </tbody>
          </table>
          {largeBids.length === 0 && <p className="empty">None since this page was opened.</p>}
        </Panel>

        <Sellers />
      </section>
    </main>
  )
}

function Sellers() {
  const [state, setState] = useState<string>("OR")
  const { data, isLoading } = useSellers(state)
  const latest = data.toSorted((one, other) => Number(other.auction - one.auction)).slice(0, SHOWN)
  const choice = (
    <select aria-label="State" value={state} onChange={(event) => setState(event.target.value)}>
      {Object.entries(STATES).map(([code, name]) => (
        <option key={code} value={code}>
          {name}
        </option>
      ))}
    </select>
  )
  return (
    <Panel title="Local sellers" note={`local_sellers where state = '${state}'`} side={choice}>
      <table data-view="local_sellers">
        <thead>
          <tr>
            <th>Seller</th>
            <th>City</th>
            <th className="number">Auction</th>
          </tr>
        </thead>
        <tbody>
          {latest.map((row) => (
            <tr key={String(row.auction)}>
              <td>{row.name}</td>
              <td>{row.city}</td>
              <td className="number">{String(row.auction)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <p className="empty">{isLoading ? "Loading" : `${whole.format(data.length)} in all`}</p>
    </Panel>
  )
}

function Status({ isLoading, error }: { isLoading: boolean; error: unknown }) {
  const [kind, text] = error ? ["bad", "no answer"] : isLoading ? ["waiting", "loading"] : ["good", "live"]
  return (
    <span className={`status ${kind}`} role="status">
      {text}
    </span>
  )
}

function Tile({ name, value, label }: { name: string; value: string; label: string }) {
  return (
    <div className="tile">
      <strong data-tile={name}>{value}</strong>
      <span>{label}</span>
    </div>
  )
}

type PanelProps = { title: string; note: string; isWide?: boolean; side?: ReactNode; children: ReactNode }

function Panel(props: PanelProps) {
  return (
    <article className={props.isWide ? "wide" : undefined}>
      <div className="heading">
        <h2>{props.title}</h2>
        {props.side}
      </div>
      <code>{props.note}</code>
      <div className="content">{props.children}</div>
    </article>
  )
}
