//! Subset of Python's pickle format (protocol 2) for builder files: numbers, text, lists, tuples,
//! dictionaries and `array.array`. Nothing is ever executed; any other class is an error.
//!
//! Containers live in an arena and are referenced by index, because a pickle may refer to the same
//! one twice. Every object costs at least one byte of input, so memory is proportional to the
//! file's size.

use std::collections::HashMap;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Object(usize),
}

#[derive(Debug)]
enum Object {
    Text(String),
    Bytes(Vec<u8>),
    List(Vec<Value>),
    Dict(Vec<(Value, Value)>),
    Global(String),
}

/// A decoded pickle.
#[derive(Debug)]
pub(super) struct Pickle {
    objects: Vec<Object>,
    pub(super) root: Value,
}

impl Pickle {
    pub(super) fn text(&self, value: Value) -> Option<&str> {
        match self.object(value)? {
            Object::Text(text) => Some(text),
            Object::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// The items of a list, tuple or array.
    pub(super) fn list(&self, value: Value) -> Option<&[Value]> {
        match self.object(value)? {
            Object::List(items) => Some(items),
            _ => None,
        }
    }

    /// The value of a key in a dictionary; `None` if it is absent.
    pub(super) fn get(&self, dict: Value, key: &str) -> Option<Value> {
        match self.object(dict)? {
            Object::Dict(pairs) => pairs
                .iter()
                .rev()
                .find(|(name, _)| self.text(*name) == Some(key))
                .map(|(_, value)| *value),
            _ => None,
        }
    }

    fn object(&self, value: Value) -> Option<&Object> {
        match value {
            Value::Object(number) => self.objects.get(number),
            _ => None,
        }
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Pickle, String> {
        let mut machine = Machine {
            rest: bytes,
            objects: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
        };
        let root = loop {
            let at = bytes.len() - machine.rest.len();
            match machine.step() {
                Some(Step::On) => {}
                Some(Step::Done(root)) => break root,
                None => return Err(format!("unexpected pickle content at byte {at}")),
            }
        };
        Ok(Pickle {
            objects: machine.objects,
            root,
        })
    }
}

enum Step {
    On,
    Done(Value),
}

/// Stack machine of the pickle opcodes.
struct Machine<'p> {
    rest: &'p [u8],
    objects: Vec<Object>,
    stack: Vec<Value>,
    marks: Vec<usize>,
    /// Memo by the index given in the pickle; a map, because the file may give any index.
    memo: HashMap<usize, Value>,
}

impl<'p> Machine<'p> {
    fn take(&mut self, length: usize) -> Option<&'p [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(*self.take(4)?.first_chunk()?))
    }

    fn line(&mut self) -> Option<&'p str> {
        let end = self.rest.iter().position(|byte| *byte == b'\n')?;
        let line = self.take(end)?;
        self.byte()?;
        std::str::from_utf8(line).ok()
    }

    fn push(&mut self, value: Value) -> Option<()> {
        self.stack.push(value);
        Some(())
    }

    fn push_object(&mut self, object: Object) -> Option<()> {
        self.objects.push(object);
        self.push(Value::Object(self.objects.len() - 1))
    }

    /// Pops everything above the last mark.
    fn since_mark(&mut self) -> Option<Vec<Value>> {
        let mark = self.marks.pop()?;
        (mark <= self.stack.len()).then(|| self.stack.split_off(mark))
    }

    fn pop(&mut self, count: usize) -> Option<Vec<Value>> {
        let start = self.stack.len().checked_sub(count)?;
        Some(self.stack.split_off(start))
    }

    fn remember(&mut self, number: usize) -> Option<()> {
        self.memo.insert(number, *self.stack.last()?);
        Some(())
    }

    fn recall(&mut self, number: usize) -> Option<()> {
        let value = *self.memo.get(&number)?;
        self.push(value)
    }

    fn append(&mut self, items: Vec<Value>) -> Option<()> {
        match (self.stack.last()?, &mut self.objects) {
            (Value::Object(number), objects) => match objects.get_mut(*number)? {
                Object::List(list) => {
                    list.extend(items);
                    Some(())
                }
                _ => None,
            },
            _ => None,
        }
    }

    fn set_items(&mut self, items: Vec<Value>) -> Option<()> {
        let Value::Object(number) = *self.stack.last()? else {
            return None;
        };
        let Object::Dict(pairs) = self.objects.get_mut(number)? else {
            return None;
        };
        pairs.extend(items.chunks_exact(2).map(|pair| (pair[0], pair[1])));
        items.len().is_multiple_of(2).then_some(())
    }

    fn step(&mut self) -> Option<Step> {
        match self.byte()? {
            0x80 => (self.byte()? <= 5).then_some(())?,
            b'N' => self.push(Value::None)?,
            0x88 => self.push(Value::Bool(true))?,
            0x89 => self.push(Value::Bool(false))?,
            b'K' => {
                let number = self.byte()?;
                self.push(Value::Int(i64::from(number)))?;
            }
            b'M' => {
                let number = u16::from_le_bytes(*self.take(2)?.first_chunk()?);
                self.push(Value::Int(i64::from(number)))?;
            }
            b'J' => {
                let number = self.u32()? as i32;
                self.push(Value::Int(i64::from(number)))?;
            }
            0x8a => {
                let length = usize::from(self.byte()?);
                let number = long(self.take(length)?)?;
                self.push(Value::Int(number))?;
            }
            b'G' => {
                let number = f64::from_be_bytes(*self.take(8)?.first_chunk()?);
                self.push(Value::Float(number))?;
            }
            b'X' => {
                let length = self.u32()? as usize;
                let text = std::str::from_utf8(self.take(length)?).ok()?.to_owned();
                self.push_object(Object::Text(text))?;
            }
            b'U' => {
                let length = usize::from(self.byte()?);
                let bytes = self.take(length)?.to_vec();
                self.push_object(Object::Bytes(bytes))?;
            }
            b'T' => {
                let length = self.u32()? as usize;
                let bytes = self.take(length)?.to_vec();
                self.push_object(Object::Bytes(bytes))?;
            }
            b']' | b')' => self.push_object(Object::List(Vec::new()))?,
            b'}' => self.push_object(Object::Dict(Vec::new()))?,
            b'(' => self.marks.push(self.stack.len()),
            b't' => {
                let items = self.since_mark()?;
                self.push_object(Object::List(items))?;
            }
            size @ 0x85..=0x87 => {
                let items = self.pop(usize::from(size) - 0x84)?;
                self.push_object(Object::List(items))?;
            }
            b'a' => {
                let items = self.pop(1)?;
                self.append(items)?;
            }
            b'e' => {
                let items = self.since_mark()?;
                self.append(items)?;
            }
            b's' => {
                let items = self.pop(2)?;
                self.set_items(items)?;
            }
            b'u' => {
                let items = self.since_mark()?;
                self.set_items(items)?;
            }
            b'q' => {
                let number = usize::from(self.byte()?);
                self.remember(number)?;
            }
            b'r' => {
                let number = self.u32()? as usize;
                self.remember(number)?;
            }
            b'h' => {
                let number = usize::from(self.byte()?);
                self.recall(number)?;
            }
            b'j' => {
                let number = self.u32()? as usize;
                self.recall(number)?;
            }
            b'c' => {
                let name = format!("{} {}", self.line()?, self.line()?);
                self.push_object(Object::Global(name))?;
            }
            b'R' => self.reduce()?,
            b'.' => return Some(Step::Done(self.stack.pop()?)),
            _ => return None,
        }
        Some(Step::On)
    }

    /// Calls a class: only `array.array(typecode, items)` is supported.
    fn reduce(&mut self) -> Option<()> {
        let call = self.pop(2)?;
        let object = |value: Value| match value {
            Value::Object(number) => self.objects.get(number),
            _ => None,
        };
        let (Object::Global(name), Object::List(arguments)) = (object(call[0])?, object(call[1])?)
        else {
            return None;
        };
        let [typecode, items] = arguments[..] else {
            return None;
        };
        if name != "array array" {
            return None;
        }
        match object(items)? {
            // An array is represented by the list it is made from.
            Object::List(_) => self.push(items),
            Object::Bytes(bytes) => {
                let width = match object(typecode)? {
                    Object::Text(code) if code == "B" => 1,
                    Object::Bytes(code) if code == b"B" => 1,
                    Object::Text(code) if code == "H" => 2,
                    Object::Bytes(code) if code == b"H" => 2,
                    _ => return None,
                };
                let number = |item: &[u8]| item.iter().rev().fold(0, |n, b| n << 8 | i64::from(*b));
                let items = bytes.chunks(width).map(|item| Value::Int(number(item)));
                let list = Object::List(items.collect());
                self.push_object(list)
            }
            _ => None,
        }
    }
}

/// Parses a little-endian two's complement number of up to eight bytes.
fn long(bytes: &[u8]) -> Option<i64> {
    let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut wide = [if negative { 0xff } else { 0 }; 8];
    wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(i64::from_le_bytes(wide))
}

/// Pickle writer: appends one value after another; the items of a container are written between its
/// opening and closing opcodes.
pub(super) struct PickleWriter(Vec<u8>);

impl PickleWriter {
    pub(super) fn new() -> Self {
        PickleWriter(vec![0x80, 2])
    }

    pub(super) fn none(&mut self) {
        self.0.push(b'N');
    }

    pub(super) fn bool(&mut self, value: bool) {
        self.0.push(if value { 0x88 } else { 0x89 });
    }

    pub(super) fn int(&mut self, value: i64) {
        if let Ok(value) = u8::try_from(value) {
            self.0.extend([b'K', value]);
        } else if let Ok(value) = u16::try_from(value) {
            self.0.push(b'M');
            self.0.extend(value.to_le_bytes());
        } else if let Ok(value) = i32::try_from(value) {
            self.0.push(b'J');
            self.0.extend(value.to_le_bytes());
        } else {
            self.0.extend([0x8a, 8]);
            self.0.extend(value.to_le_bytes());
        }
    }

    pub(super) fn float(&mut self, value: f64) {
        self.0.push(b'G');
        self.0.extend(value.to_be_bytes());
    }

    pub(super) fn text(&mut self, value: &str) {
        self.0.push(b'X');
        self.0.extend((value.len() as u32).to_le_bytes());
        self.0.extend(value.as_bytes());
    }

    pub(super) fn list(&mut self, items: impl FnOnce(&mut Self)) {
        self.0.extend(b"](");
        items(self);
        self.0.push(b'e');
    }

    /// Writes a dictionary; `pairs` writes keys and values alternately.
    pub(super) fn dict(&mut self, pairs: impl FnOnce(&mut Self)) {
        self.0.extend(b"}(");
        pairs(self);
        self.0.push(b'u');
    }

    /// Writes an `array.array`.
    pub(super) fn array(&mut self, typecode: &str, items: impl Iterator<Item = i64>) {
        self.0.extend(b"carray\narray\n");
        self.text(typecode);
        self.list(|list| items.for_each(|item| list.int(item)));
        self.0.extend([0x86, b'R']);
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.0.push(b'.');
        self.0
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn writes_what_it_reads() {
        let mut writer = PickleWriter::new();
        writer.dict(|dict| {
            dict.text("n");
            dict.list(|list| {
                for number in [0, 255, 256, 65536, -1, i64::MIN, i64::MAX] {
                    list.int(number);
                }
            });
            dict.text("a");
            dict.array("H", [7, 65535].into_iter());
        });
        let bytes = writer.finish();
        let pickle = Pickle::read(&bytes).unwrap();
        let numbers = pickle.list(pickle.get(pickle.root, "n").unwrap()).unwrap();
        assert_eq!(
            numbers[4..],
            [Value::Int(-1), Value::Int(i64::MIN), Value::Int(i64::MAX)]
        );
        let array = pickle.list(pickle.get(pickle.root, "a").unwrap()).unwrap();
        assert_eq!(array, [Value::Int(7), Value::Int(65535)]);
        for cut in 0..bytes.len() {
            assert!(Pickle::read(&bytes[..cut]).is_err());
        }
    }

    #[test]
    fn only_arrays_are_made() {
        for hostile in [
            b"\x80\x02cos\nsystem\nX\x02\0\0\0id\x85R.".as_slice(),
            b"\x80\x02r\xff\xff\xff\xff.",
            b"\x80\x02X\xff\xff\xff\xff.",
            b"\x80\x02h\x01.",
            b"\x80\x02e.",
            b"\x80\x02(.",
        ] {
            assert!(Pickle::read(hostile).is_err(), "{hostile:?}");
        }
    }
}
