//! Forks: branches of a task that go on side by side, how many of them it waits for, and where they
//! wait for each other.

use super::{Engine, Event, Step};

/// A fork that a task waits for.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitsFor {
    fork: u64,
    /// Branches that still have to end.
    need: usize,
    /// Branches beyond these that have not ended, and the seconds that they get.
    others: usize,
    linger: f64,
}

/// Branches of a fork that wait for each other, and how many have come.
#[derive(Debug, Default)]
pub(super) struct Meeting {
    came: usize,
    waiting: Vec<usize>,
}

impl Engine {
    /// Starts a fork's branches; returns the task itself if no branch is required.
    pub(super) fn fork(
        &mut self,
        task: usize,
        need: usize,
        linger: f64,
        branches: Vec<Vec<Step>>,
    ) -> Option<usize> {
        let need = need.min(branches.len());
        if need == 0 {
            return Some(task);
        }
        self.forks += 1;
        let fork = self.forks;
        let others = branches.len() - need;
        self.tasks[task].waits_for = Some(WaitsFor {
            fork,
            need,
            others,
            linger,
        });
        for steps in branches {
            let branch = self.add_task(steps, Some((task, fork)), None);
            // Through the event queue: a branch that ends at once must find its fork complete.
            self.after(0.0, Event::Waited { task: branch });
        }
        None
    }

    pub(super) fn end(&mut self, task: usize) -> Option<usize> {
        let ended = std::mem::take(&mut self.tasks[task]);
        self.free.push(task);
        self.ended.extend(ended.token);
        if let Some(run) = ended.run {
            self.ended_run(run);
        }
        let (parent, fork) = ended.parent?;
        let waits_for = &mut self.tasks[parent].waits_for;
        let waited = waits_for.as_mut().filter(|waited| waited.fork == fork)?;
        waited.need -= 1;
        if waited.need > 0 {
            return None;
        }
        if waited.linger > 0.0 && waited.others > 0 {
            let seconds = std::mem::take(&mut waited.linger);
            waited.need = std::mem::take(&mut waited.others);
            self.after(seconds, Event::Lingered { task: parent, fork });
            return None;
        }
        *waits_for = None;
        Some(parent)
    }

    /// Has the fork that this is a branch of gone on?
    pub(super) fn is_over(&self, task: usize) -> bool {
        self.tasks[task].parent.is_some_and(|(parent, fork)| {
            let waits_for = &self.tasks[parent].waits_for;
            waits_for.as_ref().is_none_or(|waited| waited.fork != fork)
        })
    }

    /// The task goes on without the branches that have not ended, if it still waits for them.
    pub(super) fn lingered(&mut self, task: usize, fork: u64) {
        let waits_for = &mut self.tasks[task].waits_for;
        if waits_for.take_if(|waited| waited.fork == fork).is_some() {
            self.go_on(task);
        }
    }

    /// Comes to a meeting; returns the task itself if enough have come.
    pub(super) fn meet(
        &mut self,
        task: usize,
        number: usize,
        need: usize,
        of: usize,
    ) -> Option<usize> {
        let fork = self.tasks[task].parent.map_or(0, |(_, fork)| fork);
        let meeting = self.meetings.entry((fork, number)).or_default();
        meeting.came += 1;
        let (came, is_enough) = (meeting.came, meeting.came >= need.min(of));
        let others = match is_enough {
            true => std::mem::take(&mut meeting.waiting),
            false => {
                meeting.waiting.push(task);
                Vec::new()
            }
        };
        if came >= of {
            self.meetings.remove(&(fork, number));
        }
        for other in others {
            self.after(0.0, Event::Waited { task: other });
        }
        is_enough.then_some(task)
    }
}
