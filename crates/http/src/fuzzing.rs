//! Entry points of the fuzz targets for this crate's private parsers; a test also runs them over
//! their seeds. Each takes any bytes and asserts properties that hold for all input.

use crate::heads::scanner::Scanner;
use crate::interim::ChunkScanner;
use crate::proxy_line;

/// Scans a head of a request or a response (by the first byte), cut into pieces of the second
/// byte's length: cuts must not change the result, and a head that passes must not be ambiguous.
pub fn heads(input: &[u8]) {
    let [kind, size, wire @ ..] = input else {
        return;
    };
    let scanner = || match kind % 2 {
        0 => Scanner::of_requests(),
        _ => Scanner::of_responses(),
    };
    let (whole, ended) = scan(scanner(), wire, wire.len());
    assert_eq!(
        scan(scanner(), wire, (*size).into()),
        (whole.clone(), ended)
    );
    assert!(
        whole.len() <= 4 * wire.len(),
        "at most an escape for each byte"
    );
    if kind % 2 == 0 && ended {
        assert_unambiguous(&whole);
    }
}

fn scan(mut scanner: Scanner, wire: &[u8], size: usize) -> (Vec<u8>, bool) {
    let mut all = Vec::new();
    for piece in wire.chunks(size.max(1)) {
        let changed = scanner.scan(piece);
        all.extend_from_slice(changed.as_deref().unwrap_or(piece));
    }
    (all, scanner.has_ended())
}

/// Asserts that a completely scanned head is unambiguous. One that was refused contains a NUL,
/// which no parser accepts in a first line or a name.
fn assert_unambiguous(head: &[u8]) {
    let start = head.iter().position(|b| !b"\r\n".contains(b)).unwrap_or(0);
    let lines = head[start..].split_inclusive(|b| *b == b'\n');
    let is_blank = |line: &&[u8]| line.iter().all(|b| b"\r\n".contains(b));
    let lines: Vec<&[u8]> = lines.take_while(|line| !is_blank(line)).collect();
    if lines.iter().any(|line| line.contains(&0)) {
        return;
    }
    let mut names: Vec<Vec<u8>> = Vec::new();
    for line in lines {
        assert!(line.ends_with(b"\r\n"), "each line ends with CR LF");
        let name = line.split(|b| *b == b':').next().unwrap_or_default();
        names.push(name.to_ascii_lowercase());
    }
    let count = |name: &[u8]| names.iter().skip(1).filter(|n| *n == name).count();
    let (hosts, coded) = (count(b"host"), count(b"transfer-encoding"));
    assert!(hosts <= 1 && coded <= 1, "said once");
    assert!(
        coded == 0 || count(b"content-length") == 0,
        "one way to tell the end"
    );
}

/// Joins two chunked bodies, fed in pieces of the first byte's length: cuts must not change the
/// result.
pub fn interim(input: &[u8]) {
    let [size, wire @ ..] = input else {
        return;
    };
    let whole = join(wire, wire.len());
    assert_eq!(join(wire, (*size).into()), whole);
    assert!(whole.is_none_or(|whole| whole.len() <= wire.len()));
}

/// Joins the chunked bodies; `None` if they are malformed.
fn join(wire: &[u8], size: usize) -> Option<Vec<u8>> {
    let mut scanner = ChunkScanner::default();
    let mut all = Vec::new();
    for piece in wire.chunks(size.max(1)) {
        match scanner.passes(piece.len()) {
            true => all.extend_from_slice(piece),
            false => all.extend(scanner.scan(piece).ok()?),
        }
    }
    Some(all)
}

/// Parses a PROXY line: one that is accepted must parse alike after being written again.
pub fn proxy_line(input: &[u8]) {
    let Ok(line) = proxy_line::parse(input) else {
        return;
    };
    assert!(input.starts_with(b"PROXY "));
    let Some(client) = line.client else {
        return;
    };
    let family = if client.is_ipv4() { "TCP4" } else { "TCP6" };
    let (ip, port) = (client.ip(), client.port());
    let server_port = if line.is_tls { 443 } else { 80 };
    let again = format!("PROXY {family} {ip} {ip} {port} {server_port}\r\n");
    let again = proxy_line::parse(again.as_bytes());
    assert_eq!(again.ok(), Some(line));
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    type Target = (&'static str, fn(&[u8]));

    #[test]
    fn seeds() {
        let targets: [Target; 3] = [
            ("heads", super::heads),
            ("interim", super::interim),
            ("proxy_line", super::proxy_line),
        ];
        for (name, target) in targets {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds");
            for seed in std::fs::read_dir(format!("{folder}/{name}")).unwrap() {
                target(&std::fs::read(seed.unwrap().path()).unwrap());
            }
        }
    }
}
