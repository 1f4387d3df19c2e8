// A line chart as SVG: zoomed by dragging, buttons or keys, read with the pointer or the arrow
// keys, each line hidden and shown by its name. Values can be had as CSV.

import { useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { ComponentChildren, TargetedKeyboardEvent, TargetedPointerEvent } from "preact";
import { fineClock } from "./format";
import { logTicks, namedTicks, nearest, ticks, timeTicks, type Point, type Series } from "./series";

interface Props {
  title: string;
  series: Series[];
  /** Values as text, on the axis and read out. */
  x: { kind: "time" | "linear" | "log"; format: (value: number) => string; label: string; name?: (value: number) => string };
  y: { kind: "linear" | "log"; format: (value: number) => string; label: string; top?: number };
  /** Points are drawn, not only lines: where there are few. */
  dots?: boolean;
  note?: string | undefined;
  /** The end follows what comes, unless it is zoomed. */
  live?: boolean;
  tall?: boolean;
  /** What x spans at least, for charts that belong together. */
  span?: Range;
  /** A choice that belongs to the chart. */
  choice?: ComponentChildren;
}

type Range = [number, number];

const [LEFT, RIGHT, TOP, BOTTOM] = [64, 14, 10, 30];

export function Chart({ title, series, x, y, dots, note, live, tall, span, choice }: Props) {
  const id = useId();
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(640);
  const [zoom, setZoom] = useState<Range | null>(null);
  const [hidden, setHidden] = useState<ReadonlySet<string>>(new Set());
  const [cursor, setCursor] = useState<number | null>(null);
  const [drag, setDrag] = useState<Range | null>(null);
  const height = tall ? 320 : width < 480 ? 210 : 240;

  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const look = () => setWidth(Math.max(260, Math.round(element.clientWidth)));
    look();
    const observer = new ResizeObserver(look);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);

  const shown = series.filter((line) => !hidden.has(line.name));
  const full = useMemo<Range>(() => extent(series, x.kind, span), [series, x.kind, span?.[0], span?.[1]]);
  const range = zoom ?? full;
  const top = useMemo(() => highest(shown, range, y.kind), [shown, range[0], range[1], y.kind]);
  const [yLow, yHigh]: Range = y.kind === "log" ? top : [0, y.top ?? top[1]];

  const forward = x.kind === "log" ? Math.log10 : (value: number) => value;
  const back = x.kind === "log" ? (value: number) => 10 ** value : (value: number) => value;
  const [a, b] = [forward(range[0]), forward(range[1])];
  const inner = width - LEFT - RIGHT;
  const depth = height - TOP - BOTTOM;
  const px = (value: number) => LEFT + ((forward(value) - a) / (b - a || 1)) * inner;
  const py = (value: number) =>
    y.kind === "log"
      ? TOP + depth - (Math.log10(Math.max(value, yLow) / yLow) / (Math.log10(yHigh / yLow) || 1)) * depth
      : TOP + depth - ((value - yLow) / (yHigh - yLow || 1)) * depth;
  const atPixel = (pixel: number) => back(a + ((clamp(pixel, LEFT, LEFT + inner) - LEFT) / inner) * (b - a));

  const steps = useMemo(() => [...new Set(shown.flatMap((line) => line.points.filter((point) => !Number.isNaN(point[1])).map((point) => point[0])))].sort((p, q) => p - q), [shown]);
  const inside = steps.filter((value) => value >= range[0] && value <= range[1]);
  const wantedX = Math.max(2, Math.floor(inner / 90));
  const xTicks = dots && inside.length <= wantedX + 4 ? inside : x.kind === "time" ? timeTicks(range[0], range[1], wantedX) : x.kind === "log" ? logTicks(range[0], range[1], wantedX) : ticks(range[0], range[1], wantedX);
  const yTicks = y.kind === "log" ? logTicks(yLow, yHigh, 6) : ticks(yLow, yHigh, Math.max(2, Math.floor(depth / 44)));

  const zoomBy = (factor: number, around?: number) => {
    const middle = forward(around ?? cursor ?? back((a + b) / 2));
    set([back(middle - (middle - a) * factor), back(middle + (b - middle) * factor)]);
  };
  const set = (wanted: Range) => {
    const [low, high] = [Math.max(full[0], Math.min(...wanted)), Math.min(full[1], Math.max(...wanted))];
    const whole = low <= full[0] && high >= full[1];
    if (whole) setZoom(null);
    else if (forward(high) - forward(low) > (forward(full[1]) - forward(full[0])) / 5000) setZoom([low, high]);
  };
  const pan = (part: number) => {
    const by = (b - a) * part;
    const [low, high] = [forward(full[0]), forward(full[1])];
    const allowed = clamp(by, low - a, high - b);
    if (zoom) setZoom([back(a + allowed), back(b + allowed)]);
  };

  const step = (by: number) => {
    if (inside.length === 0) return;
    const place = cursor === null ? (by > 0 ? -1 : inside.length) : inside.findIndex((value) => value >= cursor - 1e-12);
    const skip = Math.max(1, Math.round(inside.length / 100));
    setCursor(inside[clamp((place < 0 && cursor !== null ? inside.length : place) + by * skip, 0, inside.length - 1)] ?? null);
  };
  const onKey = (event: TargetedKeyboardEvent<SVGSVGElement>) => {
    const act: Record<string, () => void> = {
      ArrowLeft: () => (event.shiftKey ? pan(-0.2) : step(-1)),
      ArrowRight: () => (event.shiftKey ? pan(0.2) : step(1)),
      Home: () => setCursor(range[0]),
      End: () => setCursor(range[1]),
      "+": () => zoomBy(0.5),
      "=": () => zoomBy(0.5),
      "-": () => zoomBy(2),
      "0": () => setZoom(null),
      Escape: () => (setZoom(null), setCursor(null)),
    };
    const chosen = act[event.key];
    if (!chosen || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    chosen();
  };

  const inPlot = (event: TargetedPointerEvent<SVGSVGElement>) => event.clientX - event.currentTarget.getBoundingClientRect().left;
  const onMove = (event: TargetedPointerEvent<SVGSVGElement>) => {
    const value = atPixel(inPlot(event));
    setCursor(value);
    if (drag) setDrag([drag[0], value]);
  };
  const onDown = (event: TargetedPointerEvent<SVGSVGElement>) => {
    if (event.pointerType === "touch") return onMove(event);
    if (event.button !== 0) return;
    event.currentTarget.setPointerCapture(event.pointerId);
    const value = atPixel(inPlot(event));
    setDrag([value, value]);
  };
  const onUp = () => {
    if (drag && Math.abs(px(drag[0]) - px(drag[1])) > 6) set(drag);
    setDrag(null);
  };

  useEffect(() => {
    // What is zoomed into may be gone when other data is shown.
    if (zoom && (zoom[0] > full[1] || zoom[1] < full[0])) setZoom(null);
  }, [full[0], full[1]]);

  const read = cursor === null ? [] : shown.map((line) => ({ line, point: nearest(line.points, cursor) })).filter((r) => r.point && Math.abs(px(r.point[0]) - px(cursor)) < 60);
  const at = read[0]?.point?.[0];
  const named = series.filter((line) => line.points.some((point) => !Number.isNaN(point[1])));
  const xName = x.kind === "time" && xTicks.length > 1 && xTicks[1]! - xTicks[0]! < 1 ? fineClock : x.format;
  const nameOf = x.name ?? x.format;
  const empty = series.every((line) => line.points.every((point) => Number.isNaN(point[1])));
  const readout = at === undefined ? "" : `${x.label} ${nameOf(at)}: ${read.map((r) => `${r.line.name} ${y.format(r.point![1])}`).join(", ")}`;

  return (
    <figure class="chart" aria-labelledby={`${id}-title`}>
      <figcaption class="chart-head">
        <h3 id={`${id}-title`}>{title}</h3>
        {note && <span class="muted small">{note}</span>}
        <span class="spacer" />
        {choice}
        <span class="chart-tools" role="group" aria-label={`Zoom of ${title}`}>
          <button type="button" class="icon" title="Zoom in" aria-label="Zoom in" onClick={() => zoomBy(0.5)}>+</button>
          <button type="button" class="icon" title="Zoom out" aria-label="Zoom out" disabled={!zoom} onClick={() => zoomBy(2)}>−</button>
          <button type="button" class="icon wide" title="Show all" disabled={!zoom} onClick={() => setZoom(null)}>All</button>
          <button type="button" class="icon wide" title="Save these values as CSV" onClick={() => saveCsv(title, x.label, series)}>CSV</button>
        </span>
      </figcaption>
      <div class="chart-box" ref={box}>
        {empty ? (
          <p class="chart-empty" style={{ height: `${height}px` }}>{live ? "Waiting for the first figures…" : "Nothing was measured here."}</p>
        ) : (
          <svg
            width={width}
            height={height}
            role="application"
            aria-roledescription="chart"
            aria-label={`${title}. ${y.label} over ${x.label}. Arrow keys read values, plus and minus zoom, shift and arrows move, 0 shows all.`}
            tabIndex={0}
            onKeyDown={onKey}
            onPointerMove={onMove}
            onPointerDown={onDown}
            onPointerUp={onUp}
            onPointerCancel={() => setDrag(null)}
            onPointerLeave={() => !drag && setCursor(null)}
            onDblClick={() => setZoom(null)}
            onBlur={() => setCursor(null)}
          >
            <clipPath id={`${id}-clip`}>
              <rect x={LEFT - 5} y={TOP - 5} width={inner + 10} height={depth + 10} />
            </clipPath>
            {namedTicks(yTicks, y.format).map(({ value, text }) => (
              <g key={value}>
                <line class="grid" x1={LEFT} x2={LEFT + inner} y1={py(value)} y2={py(value)} />
                <text class="tick" x={LEFT - 8} y={py(value)} dy="0.32em" text-anchor="end">{text}</text>
              </g>
            ))}
            {namedTicks(xTicks, xName).map(({ value, text }) => (
              <g key={value}>
                <line class="grid mark" x1={px(value)} x2={px(value)} y1={TOP + depth} y2={TOP + depth + 4} />
                <text class="tick" x={px(value)} y={TOP + depth + 18} text-anchor="middle">{text}</text>
              </g>
            ))}
            <line class="axis" x1={LEFT} x2={LEFT + inner} y1={TOP + depth} y2={TOP + depth} />
            <g clip-path={`url(#${id}-clip)`}>
              {shown.map((line) => (
                <path key={line.name} class={`line c${line.color % 8}${line.dashed ? " dashed" : ""}`} d={path(line.points, range, px, py)} />
              ))}
              {(dots || inside.length <= 40) && shown.flatMap((line) => line.points.filter((point) => !Number.isNaN(point[1])).map((point) => (
                <circle key={`${line.name} ${point[0]}`} class={`dot c${line.color % 8}`} cx={px(point[0])} cy={py(point[1])} r={dots ? 3.5 : 2.5} />
              )))}
              {drag && <rect class="selection" x={Math.min(px(drag[0]), px(drag[1]))} width={Math.abs(px(drag[0]) - px(drag[1]))} y={TOP} height={depth} />}
              {at !== undefined && <line class="cursor" x1={px(at)} x2={px(at)} y1={TOP} y2={TOP + depth} />}
              {read.map(({ line, point }) => (
                <circle key={line.name} class={`dot c${line.color % 8}`} cx={px(point![0])} cy={py(point![1])} r={4} />
              ))}
            </g>
          </svg>
        )}
        {at !== undefined && (
          <div class={`readout ${px(at) > LEFT + inner / 2 ? "left" : "right"}`} style={px(at) > LEFT + inner / 2 ? { right: `${width - px(at) + 10}px` } : { left: `${px(at) + 10}px` }}>
            <div class="muted small">{x.label} {nameOf(at)}</div>
            {read.map(({ line, point }) => (
              <div key={line.name}><span class={`swatch c${line.color % 8}`} /> {line.name} <b>{y.format(point![1])}</b></div>
            ))}
          </div>
        )}
      </div>
      <p class="visually-hidden" aria-live="polite">{readout}</p>
      {named.length > 1 && (
        <div class="legend" role="group" aria-label={`Lines of ${title}`}>
          {named.map((line) => (
            <button
              type="button"
              key={line.name}
              aria-pressed={!hidden.has(line.name)}
              title={hidden.has(line.name) ? "Show this line" : "Hide this line"}
              onClick={() => setHidden(toggled(hidden, line.name))}
            >
              <span class={`swatch c${line.color % 8}${line.dashed ? " dashed" : ""}`} /> {line.name}
            </button>
          ))}
        </div>
      )}
    </figure>
  );
}

function toggled(set: ReadonlySet<string>, name: string): ReadonlySet<string> {
  const next = new Set(set);
  if (!next.delete(name)) next.add(name);
  return next;
}

const clamp = (value: number, low: number, high: number) => Math.min(Math.max(value, low), Math.max(low, high));

function extent(series: Series[], kind: string, span?: Range): Range {
  let [low, high] = span ?? [Infinity, -Infinity];
  for (const line of series) {
    for (const [x, y] of line.points) {
      if (Number.isNaN(y) || (kind === "log" && x <= 0)) continue;
      low = Math.min(low, x);
      high = Math.max(high, x);
    }
  }
  if (low > high) return kind === "log" ? [1, 10] : [0, 1];
  if (low === high) return kind === "log" ? [low / 2, high * 2] : [low - 0.5, high + 0.5];
  return [low, high];
}

/** What y spans within a range of x, with some air. */
function highest(series: Series[], [from, to]: Range, kind: string): Range {
  let [low, high] = [Infinity, 0];
  for (const line of series) {
    for (const [x, y] of line.points) {
      if (Number.isNaN(y) || x < from || x > to) continue;
      high = Math.max(high, y);
      if (y > 0) low = Math.min(low, y);
    }
  }
  if (high === 0) return kind === "log" ? [1, 10] : [0, 1];
  return kind === "log" ? [low / 1.3, high * 1.3] : [0, high * 1.06];
}

function path(points: Point[], [from, to]: Range, px: (x: number) => number, py: (y: number) => number): string {
  let text = "";
  let pen = false;
  points.forEach(([x, y], n) => {
    // One point beyond either end, so that lines run on to the edge.
    const next = points[n + 1];
    const before = points[n - 1];
    if ((next && next[0] < from) || (before && before[0] > to)) return;
    if (Number.isNaN(y)) {
      pen = false;
      return;
    }
    text += `${pen ? "L" : "M"}${px(x).toFixed(1)} ${py(y).toFixed(1)}`;
    pen = true;
  });
  return text;
}

function saveCsv(title: string, x: string, series: Series[]) {
  const quoted = (text: string) => `"${text.replace(/"/g, '""')}"`;
  const rows = [["line", x, "value"].map(quoted).join(",")];
  for (const line of series) for (const [at, value] of line.points) if (!Number.isNaN(value)) rows.push(`${quoted(line.name)},${at},${value}`);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([rows.join("\n") + "\n"], { type: "text/csv" }));
  link.download = title.toLowerCase().replace(/[^a-z0-9]+/g, "-") + ".csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
