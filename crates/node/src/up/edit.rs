//! Edits of single options in a conf file's text that preserve the rest, including comments.

/// Sets `option` in `[section]`: replaces it, or appends it to the section, which is created if
/// missing.
pub(crate) fn set_option(text: &str, section: &str, option: &str, value: &str) -> String {
    let line = format!("{option} = {value}");
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let Some(body) = section_body(&lines, section) else {
        if lines.last().is_some_and(|last| !last.is_empty()) {
            lines.push(String::new());
        }
        lines.push(format!("[{section}]"));
        lines.push(line);
        return joined(&lines);
    };
    match body.clone().find(|i| option_of(&lines[*i]) == Some(option)) {
        Some(at) => {
            let end = value_end(&lines, at, body.end);
            lines.splice(at..end, [line]);
        }
        None => {
            let last = body.clone().rev().find(|i| !lines[*i].trim().is_empty());
            lines.insert(last.map_or(body.start, |i| i + 1), line);
        }
    }
    joined(&lines)
}

/// Removes the options of `[section]` selected by `unwanted`.
pub(crate) fn remove_options(text: &str, section: &str, unwanted: impl Fn(&str) -> bool) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    while let Some(body) = section_body(&lines, section)
        && let Some(at) = body
            .clone()
            .find(|i| option_of(&lines[*i]).is_some_and(&unwanted))
    {
        let end = value_end(&lines, at, body.end);
        lines.drain(at..end);
    }
    joined(&lines)
}

fn joined(lines: &[String]) -> String {
    let mut text = lines.join("\n");
    text.push('\n');
    text
}

/// The lines after a section's head, up to the next head.
fn section_body(lines: &[String], section: &str) -> Option<std::ops::Range<usize>> {
    let head = format!("[{section}]");
    let start = lines.iter().position(|line| line.trim() == head)? + 1;
    let length = lines[start..].iter().position(|line| line.starts_with('['));
    Some(start..length.map_or(lines.len(), |l| start + l))
}

/// The option set by a line; none for comments and continuation lines.
fn option_of(line: &str) -> Option<&str> {
    if line.starts_with(['#', ';', ' ', '\t', '[']) {
        return None;
    }
    Some(line[..line.find(['=', ':'])?].trim())
}

fn value_end(lines: &[String], at: usize, end: usize) -> usize {
    let continued = lines[at + 1..end]
        .iter()
        .take_while(|line| line.starts_with([' ', '\t']) && !line.trim().is_empty());
    at + 1 + continued.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# mine
[DEFAULT]
bind_port = 1
bind_ip = a

[filter:tempauth]
use = egg:swift#tempauth
user_a_b = c
  .admin
# user_x_y = kept
user64_a_b = d

[x]
user_a_b = other
";

    #[test]
    fn only_what_is_named_changes() {
        let text = set_option(TEXT, "DEFAULT", "bind_port", "2");
        let text = set_option(&text, "DEFAULT", "backlog", "9");
        let text = remove_options(&text, "filter:tempauth", |o| o.starts_with("user"));
        let text = set_option(&text, "filter:tempauth", "user_q_r", "s");
        let text = set_option(&text, "new", "a", "b");
        let expected = "\
# mine
[DEFAULT]
bind_port = 2
bind_ip = a
backlog = 9

[filter:tempauth]
use = egg:swift#tempauth
# user_x_y = kept
user_q_r = s

[x]
user_a_b = other

[new]
a = b
";
        assert_eq!(text, expected);
    }
}
