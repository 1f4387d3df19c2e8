//! Writer of pickles of protocol 2. Bytes become `_codecs.encode(text, 'latin1')`, as Python 3
//! writes them at that protocol; the call's name and codec are memoised, since nearly every value
//! of an object's metadata needs them.

use super::Value;

/// Memo indices of the memoised call and codec.
const MEMO_ENCODE: u8 = 0;
const MEMO_LATIN1: u8 = 1;

/// Encodes `value` as a pickle of protocol 2.
pub fn dumps(value: &Value) -> Vec<u8> {
    let mut writer = Writer {
        out: Vec::with_capacity(512),
        has_encode: false,
    };
    writer.out.extend([0x80, 2]);
    writer.value(value);
    writer.out.push(b'.');
    writer.out
}

struct Writer {
    out: Vec<u8>,
    has_encode: bool,
}

impl Writer {
    fn value(&mut self, value: &Value) {
        match value {
            Value::None => self.out.push(b'N'),
            Value::Bool(true) => self.out.push(0x88),
            Value::Bool(false) => self.out.push(0x89),
            Value::Int(number) => self.int(*number),
            Value::Float(number) => {
                self.out.push(b'G');
                self.out.extend(number.to_be_bytes());
            }
            Value::Str(text) => self.text(text),
            Value::Bytes(bytes) => self.bytes(bytes),
            Value::Tuple(items) => self.tuple(items),
            Value::List(items) => self.list(items),
            Value::Set(items) => {
                self.out.extend(b"c__builtin__\nset\n");
                self.list(items);
                self.out.extend([0x85, b'R']);
            }
            Value::Dict(pairs) => {
                self.out.push(b'}');
                if !pairs.is_empty() {
                    self.out.push(b'(');
                    for (key, value) in pairs {
                        self.value(key);
                        self.value(value);
                    }
                    self.out.push(b'u');
                }
            }
        }
    }

    fn int(&mut self, number: i64) {
        if let Ok(byte) = u8::try_from(number) {
            self.out.extend([b'K', byte]);
        } else if let Ok(short) = u16::try_from(number) {
            self.out.push(b'M');
            self.out.extend(short.to_le_bytes());
        } else if let Ok(int) = i32::try_from(number) {
            self.out.push(b'J');
            self.out.extend(int.to_le_bytes());
        } else {
            self.out.extend([0x8a, 8]);
            self.out.extend(number.to_le_bytes());
        }
    }

    fn text(&mut self, text: &str) {
        self.out.push(b'X');
        self.length(text.len());
        self.out.extend(text.as_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            self.out.extend(b"c__builtin__\nbytes\n)R");
            return;
        }
        if self.has_encode {
            self.out.extend([b'h', MEMO_ENCODE]);
        } else {
            self.out.extend(b"c_codecs\nencode\n");
            self.out.extend([b'q', MEMO_ENCODE]);
        }
        if bytes.is_ascii() {
            self.out.push(b'X');
            self.length(bytes.len());
            self.out.extend(bytes);
        } else {
            let text: String = bytes.iter().map(|b| char::from(*b)).collect();
            self.text(&text);
        }
        if self.has_encode {
            self.out.extend([b'h', MEMO_LATIN1]);
        } else {
            self.text("latin1");
            self.out.extend([b'q', MEMO_LATIN1]);
            self.has_encode = true;
        }
        self.out.extend([0x86, b'R']);
    }

    fn tuple(&mut self, items: &[Value]) {
        let few = match items.len() {
            0 => {
                self.out.push(b')');
                return;
            }
            1 => Some(0x85),
            2 => Some(0x86),
            3 => Some(0x87),
            _ => {
                self.out.push(b'(');
                None
            }
        };
        for item in items {
            self.value(item);
        }
        self.out.push(few.unwrap_or(b't'));
    }

    fn list(&mut self, items: &[Value]) {
        self.out.push(b']');
        if !items.is_empty() {
            self.out.push(b'(');
            for item in items {
                self.value(item);
            }
            self.out.push(b'e');
        }
    }

    /// Appends a length in four bytes. A text over 4 GiB cannot occur: nothing keeps one in memory.
    fn length(&mut self, len: usize) {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        self.out.extend(len.to_le_bytes());
    }
}
