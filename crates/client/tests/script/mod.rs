//! A server with scripted responses.

#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cairn_client::{Login, Options, Retries, StoreUrl, Swift};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A server that sends the next scripted response to each request, and records the requests.
pub(crate) struct Script {
    url: String,
    seen: Arc<Mutex<Vec<String>>>,
}

pub(crate) const LOGIN: &str = "HTTP/1.1 200 OK\r\nX-Auth-Token: TOKEN\r\nX-Storage-Url: URL/v1/AUTH_a\r\n\
                     Content-Length: 0\r\n\r\n";

pub(crate) async fn script(answers: Vec<&'static str>) -> Script {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let script = Script {
        url: url.clone(),
        seen: seen.clone(),
    };
    let answers = Arc::new(Mutex::new(answers.into_iter()));
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let (answers, seen, url) = (answers.clone(), seen.clone(), url.clone());
            tokio::spawn(async move { answer_all(socket, &answers, &seen, &url).await });
        }
    });
    script
}

/// Answers the requests of one connection, until it ends.
async fn answer_all(
    mut socket: TcpStream,
    answers: &Mutex<std::vec::IntoIter<&'static str>>,
    seen: &Mutex<Vec<String>>,
    url: &str,
) {
    loop {
        let mut request = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let n = socket.read(&mut buffer).await.unwrap_or(0);
            if n == 0 {
                return;
            }
            request.extend_from_slice(&buffer[..n]);
            let text = String::from_utf8_lossy(&request).to_lowercase();
            let Some(end) = text.find("\r\n\r\n") else {
                continue;
            };
            let length = text
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
                .map_or(0, |n| n.trim().parse().unwrap());
            if request.len() >= end + 4 + length {
                break;
            }
        }
        let request = String::from_utf8_lossy(&request).into_owned();
        seen.lock().unwrap().push(request);
        let answer = answers.lock().unwrap().next();
        match answer {
            None | Some("cut") => return,
            Some("hang") => tokio::time::sleep(Duration::from_secs(600)).await,
            Some(answer) => {
                let answer = answer.replace("URL", url);
                socket.write_all(answer.as_bytes()).await.unwrap();
                if !answer.to_lowercase().contains("content-length: 0") && answer.contains("CUT") {
                    return;
                }
            }
        }
    }
}

impl Script {
    pub(crate) async fn swift(&self) -> Swift {
        let login = Login::Tempauth {
            url: StoreUrl::parse(&format!("{}/auth/v1.0", self.url)).unwrap(),
            user: "a:u".into(),
            key: "k".into(),
        };
        let options = Options {
            answer_timeout: Duration::from_millis(300),
            stall_timeout: Duration::from_millis(300),
            retries: Retries {
                attempts: 3,
                ..Retries::default()
            },
            ..Options::default()
        };
        Swift::connect(login, None, &options).await.unwrap()
    }

    pub(crate) fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let line = |request: &String| request.lines().next().unwrap().to_owned();
        self.seen().iter().map(line).collect()
    }
}

pub(crate) const OK: &str = "HTTP/1.1 201 Created\r\nETag: \"e\"\r\nContent-Length: 0\r\n\r\n";
pub(crate) const BUSY: &str = "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n";
