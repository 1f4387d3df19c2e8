//! A server that only responds: every request gets the number of bytes given by its path's first
//! part. Measuring it measures the load generator.

use std::net::Ipv4Addr;

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const SIZE_MAX: usize = 16 << 20;

pub(crate) fn main(port: u16) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            tokio::spawn(async move {
                // It ends when the client closes the connection, so errors are ignored.
                let _ = answer(stream).await;
            });
        }
    })
}

async fn answer(mut stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = [0; 4096];
    let mut answer = Vec::new();
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        if answer.is_empty() {
            let text = String::from_utf8_lossy(&buffer[..count]);
            let size = text
                .split('/')
                .nth(1)
                .and_then(|s| s.parse::<usize>().ok())
                .unwrap_or(0);
            let size = size.min(SIZE_MAX);
            answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n").into_bytes();
            answer.resize(answer.len() + size, b'x');
        }
        stream.write_all(&answer).await?;
    }
}
