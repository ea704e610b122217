// Two small charts, drawn as SVG.

import { useId } from "react"

export type Bar = { label: string; value: number; text: string }

export function Bars({ bars, title }: { bars: Bar[]; title: string }) {
  const most = Math.max(1, ...bars.map((bar) => bar.value))
  const height = 34
  return (
    <svg className="bars" role="img" aria-label={title} width="100%" height={Math.max(1, bars.length) * height}>
      {bars.map((bar, at) => (
        <g key={bar.label} transform={`translate(0 ${at * height})`}>
          <text className="label" x="0" y="21">
            {bar.label}
          </text>
          <svg x="30%" width="46%" height={height} overflow="visible">
            <rect className="track" y="9" width="100%" height="16" rx="4" />
            <rect className="bar" y="9" width={`${(100 * bar.value) / most}%`} height="16" rx="4" />
          </svg>
          <text className="value" x="100%" y="21" textAnchor="end">
            {bar.text}
          </text>
        </g>
      ))}
    </svg>
  )
}

export function Sparkline({ points, title }: { points: number[]; title: string }) {
  const fill = useId()
  const [width, height] = [600, 120]
  const most = Math.max(1, ...points)
  const step = width / Math.max(1, points.length - 1)
  const line = points.map((value, at) => `${at * step},${height - 4 - (value / most) * (height - 12)}`).join(" ")
  return (
    <svg className="sparkline" role="img" aria-label={title} viewBox={`0 0 ${width} ${height}`} preserveAspectRatio="none">
      <defs>
        <linearGradient id={fill} x1="0" y1="0" x2="0" y2="1">
          <stop offset="0" stopColor="var(--accent)" stopOpacity="0.28" />
          <stop offset="1" stopColor="var(--accent)" stopOpacity="0" />
        </linearGradient>
      </defs>
      {points.length > 1 && (
        <>
          <polygon points={`0,${height} ${line} ${width},${height}`} fill={`url(#${fill})`} />
          <polyline points={line} />
        </>
      )}
    </svg>
  )
}
