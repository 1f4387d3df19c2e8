//! Lines of the access log in syslog: field by field OpenStack Swift's.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;

use super::{PATIENCE, Program, address_of, store};

/// A line's fields, each with the pattern of its text and of what separates it from the next.
type Fields = &'static [(&'static str, &'static str)];

/// A line of OpenStack Swift's storage servers: syslog's priority and the server's name, then their
/// default `log_format`. PATH, STATUS and PID stand for what the test knows.
const STORAGE_LINE: Fields = &[
    ("priority and server", r"<134>ROLE-server: "),
    ("remote_addr", r"127\.0\.0\.1 - - "),
    (
        "time",
        r"\[[0-3][0-9]/[A-Z][a-z]{2}/20[0-9]{2}:[0-2][0-9]:[0-5][0-9]:[0-6][0-9] \+0000\] ",
    ),
    ("method and path", "\"GET PATH\" "),
    ("status", "404 "),
    // An error's standard body does not count.
    ("content_length", "- "),
    ("referer", "\"GET http://h/v1/AUTH_a\" "),
    ("txn_id", "\"tx0123456789abcdef01234-0069279e5ftest\" "),
    ("user_agent", "\"proxy-server 77\" "),
    ("trans_time", r"[0-9]+\.[0-9]{4} "),
    ("additional_info", "\"-\" "),
    ("pid", "PID "),
    ("policy_index", "0"),
];

/// A line of OpenStack Swift's proxy: the default `log_msg_template`, its values percent-encoded.
const PROXY_LINE: Fields = &[
    ("priority and server", "<134>ROLE-server: "),
    ("client_ip", r"127\.0\.0\.1 "),
    ("remote_addr", r"127\.0\.0\.1 "),
    (
        "end_time.datetime",
        "[0-3][0-9]/[A-Z][a-z]{2}/20[0-9]{2}/[0-2][0-9]/[0-5][0-9]/[0-6][0-9] ",
    ),
    ("method", "GET "),
    ("path", "PATH "),
    ("protocol", r"HTTP/1\.[01] "),
    ("status_int", "401 "),
    ("referer", "GET%20http://h/v1/AUTH_a "),
    ("user_agent", "proxy-server%2077 "),
    ("auth_token", "- "),
    ("bytes_recvd", "- "),
    ("bytes_sent", "[1-9][0-9]* "),
    ("client_etag", "- "),
    ("transaction_id", "tx[0-9a-f]{21}-[0-9a-f]{10} "),
    ("headers", "- "),
    ("request_time", r"[0-9]+\.[0-9]{4} "),
    ("source", "- "),
    ("log_info", "- "),
    ("start_time", r"[0-9]{10}\.[0-9]{9} "),
    ("end_time", r"[0-9]{10}\.[0-9]{9} "),
    ("policy_index", "- "),
    ("access_user_id", "-"),
];

/// The whole line, field by field: the first one that differs is named.
fn assert_line(line: &str, fields: Fields, known: &[(&str, &str)]) {
    let mut rest = line;
    for (name, pattern) in fields {
        let mut pattern = format!("^{pattern}");
        for (placeholder, text) in known {
            pattern = pattern.replace(placeholder, text);
        }
        let found = regex_lite::Regex::new(&pattern).unwrap().find(rest);
        let Some(found) = found else {
            panic!("{name}: {rest:?} is not {pattern:?} in {line:?}");
        };
        rest = &rest[found.end()..];
    }
    assert_eq!(rest, "", "after the last field of {line:?}");
}

/// Programs that read Swift's logs read these lines: nothing of ours stands before them.
#[test]
fn syslog_gets_a_line_of_each_request_as_from_swift() {
    let folder = store();
    let path = folder.path().join("log");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let cases = [
        ("proxy", "/v1/AUTH_a", PROXY_LINE),
        ("object", "/d1/0/AUTH_a/c/o", STORAGE_LINE),
        ("container", "/d1/0/AUTH_a/c", STORAGE_LINE),
        ("account", "/d1/0/AUTH_a", STORAGE_LINE),
    ];
    for (role, asked, fields) in cases {
        let conf = folder.path().join(format!("etc/{role}-server.conf"));
        let text = std::fs::read_to_string(&conf).unwrap();
        let log = format!("[DEFAULT]\nlog_address = {}", path.display());
        let text = text.replacen("log_level = WARNING", "log_level = INFO", 1);
        std::fs::write(&conf, text.replacen("[DEFAULT]", &log, 1)).unwrap();
        let address = address_of(&conf);
        let program = Program::start(&format!("swift-{role}-server"), &conf, address);
        let mut stream = TcpStream::connect(program.address).unwrap();
        let request = format!(
            "GET {asked} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
             Referer: GET http://h/v1/AUTH_a\r\nUser-Agent: proxy-server 77\r\n\
             X-Trans-Id: tx0123456789abcdef01234-0069279e5ftest\r\n\
             X-Backend-Storage-Policy-Index: 0\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let line = loop {
            let mut message = [0; 4096];
            let length = socket.recv(&mut message).unwrap();
            let message = String::from_utf8_lossy(&message[..length]).into_owned();
            if message.contains(asked) && message.contains("GET") {
                break message;
            }
        };
        let pids: Vec<String> = program.workers().iter().map(u32::to_string).collect();
        let pid = format!("({})", pids.join("|"));
        let known = [("ROLE", role), ("PATH", asked), ("PID", pid.as_str())];
        assert_line(&line, fields, &known);
    }
}
