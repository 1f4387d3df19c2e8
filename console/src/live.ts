// One run as it goes on: its events, gathered. A run that is over tells its whole course the same
// way, and then ends.

import { useEffect, useReducer } from "preact/hooks";
import { get, runPath, type Entry, type ResourceSample, type Sample, type StageFigures } from "./api";

export interface Course {
  entry: Entry | null;
  samples: Sample[];
  resources: ResourceSample[];
  stages: StageFigures[];
  log: string[];
  over: boolean;
  /** The connection is broken and tried again. */
  lost: boolean;
  /** Why the stages' figures cannot be shown. */
  problem: string | null;
}

type Told =
  | { type: "begin" }
  | { type: "entry"; entry: Entry }
  | { type: "samples"; lines: Sample[] }
  | { type: "resources"; lines: ResourceSample[] }
  | { type: "log"; lines: string[] }
  | { type: "stages" }
  | { type: "end" };

type Act = Told | { type: "lost" } | { type: "figures"; stages: StageFigures[] } | { type: "problem"; text: string };

const EMPTY: Course = { entry: null, samples: [], resources: [], stages: [], log: [], over: false, lost: false, problem: null };

/** Kept for the charts; older ones are thinned. */
const SAMPLES = 12_000;
const LOG = 400;

function next(course: Course, act: Act): Course {
  switch (act.type) {
    case "begin": return { ...EMPTY, entry: course.entry, stages: course.stages };
    case "entry": return { ...course, entry: act.entry };
    case "samples": return { ...course, samples: thin([...course.samples, ...act.lines]) };
    case "resources": return { ...course, resources: thin([...course.resources, ...act.lines]) };
    case "log": return { ...course, log: [...course.log, ...act.lines].slice(-LOG) };
    case "figures": return { ...course, stages: act.stages, problem: null };
    case "problem": return { ...course, problem: act.text };
    case "lost": return { ...course, lost: true };
    case "end": return { ...course, over: true, lost: false };
    default: return course;
  }
}

function thin<T>(all: T[]): T[] {
  return all.length <= SAMPLES ? all : all.filter((_, place) => place > SAMPLES / 2 || place % 2 === 0);
}

export function useCourse(id: string): Course {
  const [course, act] = useReducer(next, EMPTY);
  useEffect(() => {
    const source = new EventSource(runPath(id, "/events"));
    const stages = () => get<StageFigures[]>(runPath(id, "/stages")).then(
      (figures) => act({ type: "figures", stages: figures }),
      (error: Error) => act({ type: "problem", text: error.message }),
    );
    source.onmessage = (event) => {
      const told = JSON.parse(event.data as string) as Told;
      if (told.type === "stages") void stages();
      if (told.type === "end") source.close();
      act(told);
    };
    source.onerror = () => act({ type: "lost" });
    return () => source.close();
  }, [id]);
  return course;
}
