//! Required and optional content of elements, checked alike for all of COSBench's.

use super::super::Notes;
use super::super::error::{Source, WorkloadError, shown};
use super::super::xml::Element;

pub(super) fn required<'x>(
    source: &Source<'_>,
    element: &'x Element,
    name: &str,
) -> Result<&'x str, WorkloadError> {
    Some(element.text(name))
        .filter(|text| !text.is_empty())
        .ok_or_else(|| {
            source.error(
                element.at,
                format!("<{}> without '{name}'", shown(&element.name)),
                format!("{name}=\"…\""),
            )
        })
}

pub(super) fn expect_name(
    source: &Source<'_>,
    element: &Element,
    name: &str,
) -> Result<(), WorkloadError> {
    if element.name == name {
        return Ok(());
    }
    Err(source.error(
        element.at,
        format!("<{}>", shown(&element.name)),
        format!("<{name}>"),
    ))
}

pub(super) fn expect_children(
    source: &Source<'_>,
    element: &Element,
    known: &[&str],
) -> Result<(), WorkloadError> {
    let Some(stranger) = element
        .children
        .iter()
        .find(|child| !known.contains(&child.name.as_str()))
    else {
        return Ok(());
    };
    let expected = if known.is_empty() {
        format!("nothing within <{}>", shown(&element.name))
    } else {
        format!("<{}>", known.join(">, <"))
    };
    Err(source.error(
        stranger.at,
        format!(
            "<{}> within <{}>",
            shown(&stranger.name),
            shown(&element.name)
        ),
        expected,
    ))
}

pub(super) fn expect_attributes(element: &Element, known: &[&str], notes: &mut Notes) {
    for attribute in &element.attributes {
        if !known.contains(&attribute.name.as_str()) {
            notes.add(format!(
                "passed over the attribute '{}' of <{}>",
                shown(&attribute.name),
                shown(&element.name)
            ));
        }
    }
}
