//! Turns of this process's readers and commits at a file that other processes use too.

use std::sync::Arc;

use cairn_device::{Gate, Reading};

use crate::Result;
use crate::rank::{Rank, Standing};

/// Turns of readers and commits at a file.
#[derive(Default)]
pub(crate) struct Turns(Arc<Gate>);

/// The turn of a reader, until dropped.
pub(crate) struct ReadTurn {
    _reading: Reading,
    _standing: Standing,
}

impl Turns {
    /// Waits for a reader's turn.
    pub(crate) fn read(&self) -> ReadTurn {
        let standing = Standing::enter(Rank::Turn);
        ReadTurn {
            _reading: self.0.read(),
            _standing: standing,
        }
    }

    /// Runs a commit in its turn.
    pub(crate) fn commit(&self, commit: impl FnOnce() -> Result<()>) -> Result<()> {
        let _standing = Standing::enter(Rank::Turn);
        let turn = self.0.commit();
        let committed = commit();
        turn.end();
        committed
    }
}
