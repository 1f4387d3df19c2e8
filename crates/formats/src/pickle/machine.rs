//! The stack machine that executes a pickle's opcodes, reduced to those that build values.

use std::borrow::Cow;

use super::scalars::{little_endian_int, parse_int, raw_unicode_escape, unquote};
use super::{MAX_EXPANSION_BYTES, PickleError, Value};

/// Maximum nesting depth of values.
const MAX_DEPTH: usize = 64;
/// Maximum memo index; Python numbers memo entries consecutively from zero.
const MAX_MEMO: usize = 4 << 20;

/// Index of a node in the arena. The pickle machine's objects are shared, and are filled after they
/// were stored, so they stay in an arena until the end.
pub(super) type NodeId = u32;

enum Node<'a> {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Cow<'a, str>),
    Bytes(Cow<'a, [u8]>),
    Tuple(Vec<NodeId>),
    List(Vec<NodeId>),
    Dict(Vec<(NodeId, NodeId)>),
    Set(Vec<NodeId>),
    Callable(Callable),
}

/// The globals that stand for plain values.
#[derive(Clone, Copy)]
enum Callable {
    CodecsEncode,
    Bytes,
    Set,
    Dict,
    /// `copy_reg._reconstructor(class, base, state)`: a header dictionary in protocols 0 and 1.
    Reconstructor,
}

pub(super) struct Machine<'a> {
    input: &'a [u8],
    at: usize,
    nodes: Vec<Node<'a>>,
    stack: Vec<NodeId>,
    /// Stack heights at each `MARK`.
    marks: Vec<usize>,
    memo: Vec<Option<NodeId>>,
    /// Bytes that copies of shared values may still use.
    expansion: usize,
}

impl<'a> Machine<'a> {
    pub(super) fn new(input: &'a [u8]) -> Self {
        Machine {
            input,
            at: 0,
            nodes: Vec::with_capacity(64),
            stack: Vec::with_capacity(32),
            marks: Vec::new(),
            memo: Vec::new(),
            expansion: input.len() + MAX_EXPANSION_BYTES,
        }
    }

    pub(super) fn run(&mut self) -> Result<NodeId, PickleError> {
        loop {
            let opcode = self.byte()?;
            match opcode {
                b'.' => return self.pop(),
                b'(' => self.marks.push(self.stack.len()),
                b'0' => self.pop_any()?,
                b'1' => {
                    self.pop_mark()?;
                }
                b'2' => {
                    let top = self.top()?;
                    self.stack.push(top);
                }
                0x80 => {
                    if self.byte()? > 5 {
                        return Err(PickleError::Malformed("unknown protocol"));
                    }
                }
                0x95 => {
                    self.take(8)?;
                }
                b'N' | 0x88 | 0x89 | b'I' | b'J' | b'K' | b'M' | b'L' | 0x8a | 0x8b | b'F'
                | b'G' => self.number(opcode)?,
                b'S' | b'T' | b'U' | b'V' | b'X' | 0x8c | 0x8d | b'B' | b'C' | 0x8e | 0x96 => {
                    self.text(opcode)?;
                }
                b']'
                | b'l'
                | b'a'
                | b'e'
                | b')'
                | b't'
                | 0x85..=0x87
                | b'}'
                | b'd'
                | b's'
                | b'u'
                | 0x8f
                | 0x90
                | 0x91 => self.collection(opcode)?,
                b'g' | b'h' | b'j' | b'p' | b'q' | b'r' | 0x94 => self.memo_op(opcode)?,
                b'c' | 0x93 => self.global(opcode)?,
                b'R' | 0x81 => self.call()?,
                other => return Err(PickleError::Opcode(other)),
            }
        }
    }

    fn number(&mut self, opcode: u8) -> Result<(), PickleError> {
        let node = match opcode {
            b'N' => Node::None,
            0x88 => Node::Bool(true),
            0x89 => Node::Bool(false),
            b'J' => Node::Int(i64::from(i32::from_le_bytes(self.array()?))),
            b'K' => Node::Int(i64::from(self.byte()?)),
            b'M' => Node::Int(i64::from(u16::from_le_bytes(self.array()?))),
            b'I' => match self.line()? {
                "00" => Node::Bool(false),
                "01" => Node::Bool(true),
                line => Node::Int(parse_int(line)?),
            },
            b'L' => {
                let line = self.line()?;
                Node::Int(parse_int(line.strip_suffix('L').unwrap_or(line))?)
            }
            0x8a => {
                let len = usize::from(self.byte()?);
                Node::Int(little_endian_int(self.take(len)?)?)
            }
            0x8b => {
                let len = self.length4()?;
                Node::Int(little_endian_int(self.take(len)?)?)
            }
            b'F' => {
                let line = self.line()?;
                let number = line.trim().parse();
                Node::Float(number.map_err(|_| PickleError::Malformed("not a float"))?)
            }
            _ => Node::Float(f64::from_be_bytes(self.array()?)),
        };
        self.push(node)
    }

    fn text(&mut self, opcode: u8) -> Result<(), PickleError> {
        let node = match opcode {
            b'S' => Node::Bytes(Cow::Owned(unquote(self.line_bytes()?)?)),
            b'V' => Node::Str(Cow::Owned(raw_unicode_escape(self.line_bytes()?)?)),
            b'U' | b'C' | 0x8c => {
                let len = usize::from(self.byte()?);
                self.counted(opcode, len)?
            }
            b'T' | b'X' | b'B' => {
                let len = self.length4()?;
                self.counted(opcode, len)?
            }
            _ => {
                let len = u64::from_le_bytes(self.array()?);
                let len = usize::try_from(len).map_err(|_| PickleError::Truncated)?;
                self.counted(opcode, len)?
            }
        };
        self.push(node)
    }

    fn counted(&mut self, opcode: u8, len: usize) -> Result<Node<'a>, PickleError> {
        let bytes = self.take(len)?;
        Ok(match opcode {
            b'X' | 0x8c | 0x8d => Node::Str(Cow::Borrowed(
                std::str::from_utf8(bytes).map_err(|_| PickleError::Malformed("not UTF-8"))?,
            )),
            _ => Node::Bytes(Cow::Borrowed(bytes)),
        })
    }

    fn collection(&mut self, opcode: u8) -> Result<(), PickleError> {
        match opcode {
            b']' => self.push(Node::List(Vec::new())),
            b')' => self.push(Node::Tuple(Vec::new())),
            b'}' => self.push(Node::Dict(Vec::new())),
            0x8f => self.push(Node::Set(Vec::new())),
            b'l' => {
                let items = self.pop_mark()?;
                self.push(Node::List(items))
            }
            b't' => {
                let items = self.pop_mark()?;
                self.push(Node::Tuple(items))
            }
            0x91 => {
                let items = self.pop_mark()?;
                self.push(Node::Set(items))
            }
            b'd' => {
                let items = self.pop_mark()?;
                self.push(Node::Dict(pairs(&items)?))
            }
            0x85..=0x87 => {
                let mut items = Vec::with_capacity(3);
                for _ in 0x85..=opcode {
                    items.push(self.pop()?);
                }
                items.reverse();
                self.push(Node::Tuple(items))
            }
            b'a' => {
                let item = self.pop()?;
                self.extend(&[item], false)
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.extend(&[key, value], true)
            }
            b'u' => {
                let items = self.pop_mark()?;
                self.extend(&items, true)
            }
            _ => {
                let items = self.pop_mark()?;
                self.extend(&items, false)
            }
        }
    }

    /// Adds to the collection on top of the stack.
    fn extend(&mut self, items: &[NodeId], as_pairs: bool) -> Result<(), PickleError> {
        let top = self.top()?;
        match &mut self.nodes[top as usize] {
            Node::List(list) | Node::Set(list) if !as_pairs => list.extend_from_slice(items),
            Node::Dict(dict) if as_pairs => dict.extend(pairs(items)?),
            _ => return Err(PickleError::Malformed("items for no collection")),
        }
        Ok(())
    }

    fn memo_op(&mut self, opcode: u8) -> Result<(), PickleError> {
        let index = match opcode {
            b'g' | b'p' => usize::try_from(parse_int(self.line()?)?)
                .map_err(|_| PickleError::Malformed("negative memo index"))?,
            b'h' | b'q' => usize::from(self.byte()?),
            0x94 => self.memo.len(),
            _ => self.length4()?,
        };
        if matches!(opcode, b'g' | b'h' | b'j') {
            let node = self.memo.get(index).copied().flatten();
            let node = node.ok_or(PickleError::Malformed("no such memo"))?;
            self.stack.push(node);
            return Ok(());
        }
        // An index far beyond the input's length can only be hostile.
        if index > MAX_MEMO || index > self.memo.len() + self.input.len() {
            return Err(PickleError::TooLarge);
        }
        if self.memo.len() <= index {
            self.memo.resize(index + 1, None);
        }
        self.memo[index] = Some(self.top()?);
        Ok(())
    }

    fn global(&mut self, opcode: u8) -> Result<(), PickleError> {
        let (module, name) = if opcode == b'c' {
            (self.line()?.to_owned(), self.line()?.to_owned())
        } else {
            let name = self.pop_str()?;
            (self.pop_str()?, name)
        };
        let callable = match (module.as_str(), name.as_str()) {
            ("_codecs", "encode") => Callable::CodecsEncode,
            ("copy_reg" | "copyreg", "_reconstructor") => Callable::Reconstructor,
            ("__builtin__" | "builtins", "bytes" | "bytearray") => Callable::Bytes,
            ("__builtin__" | "builtins", "set" | "frozenset") => Callable::Set,
            ("__builtin__" | "builtins", "dict")
            | ("collections", "OrderedDict")
            | (
                "swift.common.header_key_dict" | "swift.common.swob" | "swift.common.utils",
                "HeaderKeyDict",
            ) => Callable::Dict,
            _ => return Err(PickleError::Global { module, name }),
        };
        self.push(Node::Callable(callable))
    }

    /// `REDUCE` and `NEWOBJ`: calls one of the known callables with a tuple of arguments.
    fn call(&mut self) -> Result<(), PickleError> {
        let arguments = self.pop()?;
        let callable = self.pop()?;
        let Node::Callable(callable) = self.nodes[callable as usize] else {
            return Err(PickleError::Malformed("call of no callable"));
        };
        let Node::Tuple(arguments) = &self.nodes[arguments as usize] else {
            return Err(PickleError::Malformed("call without arguments"));
        };
        let cost = arguments.iter().map(|id| self.copy_cost(*id)).sum();
        self.expansion = self
            .expansion
            .checked_sub(cost)
            .ok_or(PickleError::TooLarge)?;
        let node = match (callable, arguments.as_slice()) {
            (Callable::Bytes, []) => Node::Bytes(Cow::Borrowed(b"")),
            (Callable::Set, []) => Node::Set(Vec::new()),
            (Callable::Dict, []) => Node::Dict(Vec::new()),
            (Callable::Set, [items]) => match &self.nodes[*items as usize] {
                Node::List(items) | Node::Tuple(items) | Node::Set(items) => {
                    Node::Set(items.clone())
                }
                _ => return Err(PickleError::Malformed("set of no list")),
            },
            (Callable::Bytes, [text]) => match &self.nodes[*text as usize] {
                Node::Bytes(bytes) => Node::Bytes(bytes.clone()),
                _ => return Err(PickleError::Malformed("bytes of no bytes")),
            },
            (Callable::CodecsEncode | Callable::Bytes, [text, codec]) => {
                self.latin1(*text, *codec)?
            }
            (Callable::Reconstructor, [class, _base, state]) => {
                match (&self.nodes[*class as usize], &self.nodes[*state as usize]) {
                    (Node::Callable(Callable::Dict), Node::Dict(pairs)) => {
                        Node::Dict(pairs.clone())
                    }
                    (Node::Callable(Callable::Dict), Node::None) => Node::Dict(Vec::new()),
                    _ => return Err(PickleError::Malformed("reconstruction of no dictionary")),
                }
            }
            _ => return Err(PickleError::Malformed("unexpected arguments")),
        };
        self.push(node)
    }

    /// Number of bytes read so far.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// Number of bytes that a call on this argument may copy.
    fn copy_cost(&self, id: NodeId) -> usize {
        match &self.nodes[id as usize] {
            Node::Str(text) => text.len(),
            Node::Bytes(bytes) => bytes.len(),
            Node::List(items) | Node::Tuple(items) | Node::Set(items) => items.len() * 4,
            Node::Dict(pairs) => pairs.len() * 8,
            _ => 0,
        }
    }

    fn latin1(&self, text: NodeId, codec: NodeId) -> Result<Node<'a>, PickleError> {
        let is_latin1 = match &self.nodes[codec as usize] {
            Node::Str(codec) => matches!(codec.as_ref(), "latin1" | "latin-1"),
            Node::Bytes(codec) => matches!(codec.as_ref(), b"latin1" | b"latin-1"),
            _ => false,
        };
        if !is_latin1 {
            return Err(PickleError::Malformed("a codec other than latin1"));
        }
        Ok(Node::Bytes(match &self.nodes[text as usize] {
            Node::Str(Cow::Borrowed(text)) if text.is_ascii() => Cow::Borrowed(text.as_bytes()),
            Node::Str(text) => Cow::Owned(
                text.chars()
                    .map(|c| u8::try_from(u32::from(c)))
                    .collect::<Result<_, _>>()
                    .map_err(|_| PickleError::Malformed("not latin1"))?,
            ),
            _ => return Err(PickleError::Malformed("encode of no text")),
        }))
    }

    /// Copies the value tree out of the arena; cycles end at the depth limit.
    pub(super) fn build(
        &self,
        id: NodeId,
        depth: usize,
        budget: &mut usize,
    ) -> Result<Value, PickleError> {
        if depth > MAX_DEPTH {
            return Err(PickleError::TooDeep);
        }
        let cost = std::mem::size_of::<Value>();
        *budget = budget.checked_sub(cost / 8).ok_or(PickleError::TooLarge)?;
        let mut list = |items: &[NodeId]| {
            items
                .iter()
                .map(|item| self.build(*item, depth + 1, budget))
                .collect::<Result<Vec<_>, _>>()
        };
        Ok(match &self.nodes[id as usize] {
            Node::None => Value::None,
            Node::Bool(yes) => Value::Bool(*yes),
            Node::Int(number) => Value::Int(*number),
            Node::Float(number) => Value::Float(*number),
            Node::Str(text) => {
                *budget = budget
                    .checked_sub(text.len())
                    .ok_or(PickleError::TooLarge)?;
                Value::Str(text.clone().into_owned())
            }
            Node::Bytes(bytes) => {
                *budget = budget
                    .checked_sub(bytes.len())
                    .ok_or(PickleError::TooLarge)?;
                Value::Bytes(bytes.clone().into_owned())
            }
            Node::Tuple(items) => Value::Tuple(list(items)?),
            Node::List(items) => Value::List(list(items)?),
            Node::Set(items) => Value::Set(list(items)?),
            Node::Dict(pairs) => self.build_dict(pairs, depth, budget)?,
            Node::Callable(_) => return Err(PickleError::Malformed("a global as a value")),
        })
    }

    fn build_dict(
        &self,
        pairs: &[(NodeId, NodeId)],
        depth: usize,
        budget: &mut usize,
    ) -> Result<Value, PickleError> {
        let mut dict: Vec<(Value, Value)> = Vec::with_capacity(pairs.len());
        let mut seen = std::collections::HashMap::new();
        for (key, value) in pairs {
            let key = self.build(*key, depth + 1, budget)?;
            let value = self.build(*value, depth + 1, budget)?;
            // Swift writes text keys only, so only those can be duplicates.
            let text = match &key {
                Value::Str(text) => Some((false, text.as_bytes().to_vec())),
                Value::Bytes(bytes) => Some((true, bytes.clone())),
                _ => None,
            };
            match text.map(|text| seen.entry(text)) {
                Some(std::collections::hash_map::Entry::Occupied(at)) => {
                    let at: usize = *at.get();
                    dict[at].1 = value;
                }
                Some(std::collections::hash_map::Entry::Vacant(slot)) => {
                    slot.insert(dict.len());
                    dict.push((key, value));
                }
                None => dict.push((key, value)),
            }
        }
        Ok(Value::Dict(dict))
    }

    fn push(&mut self, node: Node<'a>) -> Result<(), PickleError> {
        let id = NodeId::try_from(self.nodes.len()).map_err(|_| PickleError::TooLarge)?;
        self.nodes.push(node);
        self.stack.push(id);
        Ok(())
    }

    fn pop(&mut self) -> Result<NodeId, PickleError> {
        if self.marks.last() == Some(&self.stack.len()) {
            return Err(PickleError::Malformed("a mark where a value should be"));
        }
        self.stack
            .pop()
            .ok_or(PickleError::Malformed("empty stack"))
    }

    fn pop_any(&mut self) -> Result<(), PickleError> {
        if self.marks.last() == Some(&self.stack.len()) {
            self.marks.pop();
            return Ok(());
        }
        self.pop().map(|_| ())
    }

    fn top(&self) -> Result<NodeId, PickleError> {
        if self.marks.last() == Some(&self.stack.len()) {
            return Err(PickleError::Malformed("a mark where a value should be"));
        }
        let top = self.stack.last().copied();
        top.ok_or(PickleError::Malformed("empty stack"))
    }

    fn pop_mark(&mut self) -> Result<Vec<NodeId>, PickleError> {
        let mark = self.marks.pop().ok_or(PickleError::Malformed("no mark"))?;
        Ok(self.stack.split_off(mark.min(self.stack.len())))
    }

    fn pop_str(&mut self) -> Result<String, PickleError> {
        let id = self.pop()?;
        match &self.nodes[id as usize] {
            Node::Str(text) => Ok(text.clone().into_owned()),
            _ => Err(PickleError::Malformed("a global's name is no text")),
        }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], PickleError> {
        let end = self.at.checked_add(len).ok_or(PickleError::Truncated)?;
        let bytes = self.input.get(self.at..end).ok_or(PickleError::Truncated)?;
        self.at = end;
        Ok(bytes)
    }

    fn byte(&mut self) -> Result<u8, PickleError> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], PickleError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn length4(&mut self) -> Result<usize, PickleError> {
        Ok(u32::from_le_bytes(self.array()?) as usize)
    }

    fn line_bytes(&mut self) -> Result<&'a [u8], PickleError> {
        let rest = &self.input[self.at..];
        let end = rest.iter().position(|b| *b == b'\n');
        let end = end.ok_or(PickleError::Truncated)?;
        self.at += end + 1;
        Ok(&rest[..end])
    }

    fn line(&mut self) -> Result<&'a str, PickleError> {
        let line = std::str::from_utf8(self.line_bytes()?);
        line.map_err(|_| PickleError::Malformed("not UTF-8"))
    }
}

fn pairs(items: &[NodeId]) -> Result<Vec<(NodeId, NodeId)>, PickleError> {
    if !items.len().is_multiple_of(2) {
        return Err(PickleError::Malformed("a key without a value"));
    }
    Ok(items.chunks_exact(2).map(|p| (p[0], p[1])).collect())
}
