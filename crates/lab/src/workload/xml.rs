//! A small XML tree with positions, based on quick-xml. Bounded in depth and number; document types
//! (and thus entity definitions) are refused; text between elements is ignored.

use quick_xml::XmlVersion;
use quick_xml::events::{BytesStart, Event};
use quick_xml::reader::Reader;

use super::error::{Source, WorkloadError, shown};
use super::{limits, value};

/// An element. Offsets are those of its `<` and of attribute values.
#[derive(Debug)]
pub(super) struct Element {
    pub(super) name: String,
    pub(super) at: usize,
    pub(super) attributes: Vec<Attribute>,
    pub(super) children: Vec<Element>,
}

#[derive(Debug)]
pub(super) struct Attribute {
    pub(super) name: String,
    pub(super) value: String,
    pub(super) at: usize,
}

impl Element {
    pub(super) fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.attributes.iter().find(|a| a.name == name)
    }

    /// An attribute's value, or an empty text.
    pub(super) fn text(&self, name: &str) -> &str {
        self.attribute(name).map_or("", |a| a.value.as_str())
    }

    pub(super) fn child(&self, name: &str) -> Option<&Element> {
        self.children.iter().find(|child| child.name == name)
    }

    pub(super) fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Element> {
        self.children.iter().filter(move |child| child.name == name)
    }
}

/// Parses the whole text into its root element.
pub(super) fn parse(source: &Source<'_>) -> Result<Element, WorkloadError> {
    let mut reader = Reader::from_str(source.text);
    let mut open: Vec<Element> = Vec::new();
    let mut root: Option<Element> = None;
    let mut count = 0usize;
    loop {
        let at = position(reader.buffer_position());
        let event = reader.read_event().map_err(|error| {
            let at = position(reader.error_position());
            source.error(at, format!("malformed XML: {error}"), "well-formed XML")
        })?;
        match event {
            Event::Start(start) | Event::Empty(start) if root.is_some() && open.is_empty() => {
                return Err(source.error(
                    at,
                    format!("<{}> behind the root element", shown(start.name().as_ref())),
                    "the end of the file",
                ));
            }
            Event::Start(start) => {
                if open.len() >= limits::DEPTH {
                    return Err(source.error(
                        at,
                        format!("elements nested {} deep", open.len() + 1),
                        format!("at most {}", limits::DEPTH),
                    ));
                }
                open.push(element(source, &start, at, &mut count)?);
            }
            Event::Empty(start) => {
                let element = element(source, &start, at, &mut count)?;
                close(&mut open, &mut root, element);
            }
            Event::End(_) => {
                if let Some(element) = open.pop() {
                    close(&mut open, &mut root, element);
                }
            }
            Event::DocType(_) => {
                return Err(source.error(
                    at,
                    "a document type, which may define entities",
                    "XML without <!DOCTYPE>",
                ));
            }
            Event::GeneralRef(reference) => {
                return Err(source.error(
                    at,
                    format!("'&{};' between elements", shown(&reference)),
                    "elements and comments only",
                ));
            }
            Event::Text(text) if !text.trim().is_empty() => {
                return Err(source.error(
                    at,
                    format!("the text '{}'", shown(text.trim())),
                    "elements and comments only",
                ));
            }
            Event::CData(_) => {
                return Err(source.error(at, "a CDATA section", "elements and comments only"));
            }
            Event::Text(_) | Event::Comment(_) | Event::Decl(_) | Event::PI(_) => {}
            Event::Eof => break,
        }
    }
    if let Some(element) = open.last() {
        return Err(source.error(
            source.text.len(),
            format!("the end of the file within <{}>", shown(&element.name)),
            format!("</{}>", shown(&element.name)),
        ));
    }
    root.ok_or_else(|| source.error(0, "a file without an element", "<workload name=\"…\">"))
}

fn position(at: u64) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}

fn close(open: &mut [Element], root: &mut Option<Element>, element: Element) {
    match open.last_mut() {
        Some(parent) => parent.children.push(element),
        None => *root = Some(element),
    }
}

fn element(
    source: &Source<'_>,
    start: &BytesStart<'_>,
    at: usize,
    count: &mut usize,
) -> Result<Element, WorkloadError> {
    *count += 1;
    if *count > limits::ELEMENTS {
        return Err(source.error(
            at,
            "more elements",
            format!("at most {} in a file", limits::ELEMENTS),
        ));
    }
    let mut attributes = Vec::new();
    for attribute in start.attributes() {
        let attribute = attribute.map_err(|error| {
            source.error(
                at,
                format!(
                    "a malformed attribute of <{}>: {error}",
                    shown(start.name().as_ref())
                ),
                "name=\"value\", each name once",
            )
        })?;
        // The reader borrows from the text, so a value's address gives its position.
        let inside = (attribute.value.as_ptr() as usize)
            .checked_sub(source.text.as_ptr() as usize)
            .filter(|offset| *offset <= source.text.len());
        let value_at = inside.unwrap_or(at);
        let name = attribute.key.as_ref().to_owned();
        let value = attribute
            .normalized_value(XmlVersion::Implicit1_0)
            .map_err(|error| {
                source.error(
                    value_at,
                    format!("'{}': {error}", shown(&attribute.value)),
                    "only &lt; &gt; &amp; &quot; &apos; and character references",
                )
            })?;
        let value = value::plain(&value).map_err(|wrong| source.wrong(value_at, wrong))?;
        if attributes.len() >= limits::ATTRIBUTES {
            return Err(source.error(
                at,
                "an element of more attributes",
                format!("at most {}", limits::ATTRIBUTES),
            ));
        }
        attributes.push(Attribute {
            name,
            value,
            at: value_at,
        });
    }
    Ok(Element {
        name: start.name().as_ref().to_owned(),
        at,
        attributes,
        children: Vec::new(),
    })
}
