//! Python pickles as plain data: reads the value opcodes of protocols 0 to 5, writes protocol 2,
//! which every Swift reads.
//!
//! Nothing in a pickle is ever executed: the few globals that stand for values (`_codecs.encode` of
//! a latin-1 text, `bytes`, `set`, Swift's header dictionary) are recognised by name, every other
//! one is an error. Input is hostile by assumption: size, depth and work are bounded.
//!
//! Strings that Python 2 wrote (`STRING`, `BINSTRING`) are read as bytes, as Swift reads them.

use thiserror::Error;

mod machine;
mod metadata;
mod scalars;
mod writer;

use machine::Machine;
pub use metadata::{byte_strings, dump_byte_strings};
pub use writer::dumps;

/// Maximum bytes of a pickle.
const MAX_INPUT_BYTES: usize = 64 << 20;
/// Maximum bytes by which sharing through the memo may expand a pickle beyond its own size.
const MAX_EXPANSION_BYTES: usize = 16 << 20;

/// A value in a pickle.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
    Bytes(Vec<u8>),
    Tuple(Vec<Value>),
    List(Vec<Value>),
    /// Entries in the order written; a key set twice appears once, with its last value.
    Dict(Vec<(Value, Value)>),
    Set(Vec<Value>),
}

/// Reasons why bytes are not a pickle of plain data.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum PickleError {
    #[error("the pickle ends in the middle")]
    Truncated,
    #[error("opcode {0:#04x} is not for plain data")]
    Opcode(u8),
    #[error("the pickle names {module}.{name}, which is not plain data")]
    Global { module: String, name: String },
    #[error("malformed pickle: {0}")]
    Malformed(&'static str),
    #[error("the pickle is larger than is accepted")]
    TooLarge,
    #[error("the pickle is nested deeper than is accepted")]
    TooDeep,
}

impl Value {
    pub fn str(text: impl Into<String>) -> Value {
        Value::Str(text.into())
    }

    pub fn bytes(bytes: impl Into<Vec<u8>>) -> Value {
        Value::Bytes(bytes.into())
    }

    /// A text of either form as UTF-8.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Value::Str(text) => Some(text.as_bytes()),
            Value::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// A text of either form, if it is UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Str(text) => Some(text),
            Value::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// An integer; a boolean counts as one, as in Python.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Value::Int(number) => Some(*number),
            Value::Bool(yes) => Some(i64::from(*yes)),
            _ => None,
        }
    }

    pub fn as_float(&self) -> Option<f64> {
        match self {
            Value::Float(number) => Some(*number),
            _ => self.as_int().map(|n| n as f64),
        }
    }

    /// The items of a tuple, list or set.
    pub fn items(&self) -> Option<&[Value]> {
        match self {
            Value::Tuple(items) | Value::List(items) | Value::Set(items) => Some(items),
            _ => None,
        }
    }

    pub fn as_dict(&self) -> Option<&[(Value, Value)]> {
        match self {
            Value::Dict(pairs) => Some(pairs),
            _ => None,
        }
    }

    /// The dictionary's value for a text key of either form.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let pairs = self.as_dict()?;
        let pair = pairs
            .iter()
            .find(|(k, _)| k.as_bytes() == Some(key.as_bytes()));
        pair.map(|(_, value)| value)
    }

    pub fn is_none(&self) -> bool {
        matches!(self, Value::None)
    }
}

/// Parses one pickle; bytes after its end are ignored, as in Python.
///
/// # Errors
/// As [`loads_prefix`].
pub fn loads(input: &[u8]) -> Result<Value, PickleError> {
    loads_prefix(input).map(|(value, _)| value)
}

/// Parses one pickle and returns also its length in bytes.
///
/// # Errors
/// `Truncated` or `Malformed` for a damaged pickle, `Opcode` or `Global` for one that is not plain
/// data, `TooLarge` or `TooDeep` over the limits.
pub fn loads_prefix(input: &[u8]) -> Result<(Value, usize), PickleError> {
    if input.len() > MAX_INPUT_BYTES {
        return Err(PickleError::TooLarge);
    }
    let mut machine = Machine::new(input);
    let root = machine.run()?;
    let mut budget = input.len() + MAX_EXPANSION_BYTES;
    let value = machine.build(root, 0, &mut budget)?;
    Ok((value, machine.position()))
}

#[cfg(test)]
mod tests;
