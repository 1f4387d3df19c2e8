//! The controller's end of a connection to a driver on another host.

use std::io::ErrorKind::UnexpectedEof as Eof;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use cairn_http::tls::AnyCertificate;
use rustls::ClientConfig;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use thiserror::Error;
use tokio::io::{ReadHalf, WriteHalf, split};
use tokio::net::TcpStream;
use tokio::sync::mpsc as async_mpsc;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::link::{DriverMessage, Link, Report};
use super::wire::{self, Answer, Command, WireError};
use crate::drive::{Share, now};
use crate::plan::{Access, Stage};
use crate::record::DriverMeta;
use crate::target::TargetOptions;

/// Time without messages after which a driver counts as lost; it sends one every second.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(10);
const REACH: Duration = Duration::from_secs(10);
/// Number of round trips for comparing clocks; the quickest counts.
const PINGS: u32 = 16;

/// Reasons why a driver cannot be used.
#[derive(Debug, Error)]
pub enum ReachError {
    #[error("driver {address}: {why}")]
    Driver { address: String, why: String },
}

/// Parameters sent to every driver of a run.
#[derive(Debug, Clone)]
pub struct Briefing {
    pub secret: String,
    pub seed: u64,
    pub access: Access,
    pub options: TargetOptions,
    pub resources: Duration,
    pub watched: Vec<String>,
}

pub struct RemoteLink {
    meta: DriverMeta,
    commands: async_mpsc::UnboundedSender<Command>,
}

/// Authenticates to the driver at `address`, measures its clock offset, and receives its messages
/// from then on.
///
/// # Errors
/// `Driver`, with the reason: no connection or no answer within 10 s, another secret, or a refusal.
pub async fn reach(
    address: &str,
    index: usize,
    share: Share,
    briefing: &Briefing,
    report: mpsc::Sender<Report>,
) -> Result<RemoteLink, ReachError> {
    let why = |error: String| ReachError::Driver {
        address: address.to_owned(),
        why: error,
    };
    let connect = connect(address, &briefing.secret);
    let stream = tokio::time::timeout(REACH, connect)
        .await
        .map_err(|_| why("no answer within 10 s".into()))?
        .map_err(|error| why(error.to_string()))?;
    let (mut input, mut output) = split(stream);
    let name = format!("driver{}", index + 1);
    let hello = Command::Hello {
        version: wire::VERSION,
        name: name.clone(),
        share,
        seed: briefing.seed,
        access: Box::new(briefing.access.clone()),
        options: briefing.options.clone(),
        resources: briefing.resources,
        watched: briefing.watched.clone(),
    };
    let met = tokio::time::timeout(REACH, meet(&mut input, &mut output, hello));
    let met = met.await.map_err(|_| why("no answer within 10 s".into()))?;
    let mut meta = met.map_err(|error| why(error.to_string()))?.map_err(why)?;
    meta.name = name;
    meta.address = address.to_owned();
    let (commands, queue) = async_mpsc::unbounded_channel();
    tokio::spawn(write(output, queue, report.clone(), index));
    tokio::spawn(read(input, report, index));
    Ok(RemoteLink { meta, commands })
}

async fn connect(address: &str, secret: &str) -> Result<TlsStream<TcpStream>, WireError> {
    let provider = Arc::new(ring::default_provider());
    let verifier = AnyCertificate::new(provider.clone());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        // The secret authenticates the peer; see `wire`.
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let name = ServerName::from(stream.peer_addr()?.ip());
    let mut stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await?;
    let mine = wire::proof(stream.get_ref().1, secret, wire::CONTROLLER)?;
    let theirs = wire::proof(stream.get_ref().1, secret, wire::DRIVER)?;
    wire::send_proof(&mut stream, mine).await?;
    // A driver with another secret disconnects here.
    match wire::check_proof(&mut stream, theirs).await {
        Err(WireError::Io(_)) => Err(WireError::Secret),
        result => result.map(|()| stream),
    }
}

type Input = ReadHalf<TlsStream<TcpStream>>;
type Output = WriteHalf<TlsStream<TcpStream>>;

/// Exchanges greetings: the driver's facts and clock offset, or the reason of its refusal.
async fn meet(
    input: &mut Input,
    output: &mut Output,
    hello: Command,
) -> Result<Result<DriverMeta, String>, WireError> {
    wire::send(output, &hello).await?;
    let host = loop {
        match wire::receive(input).await? {
            Answer::Welcome { host } => break host,
            Answer::Refused(why) => return Ok(Err(why)),
            _ => {}
        }
    };
    let mut meta = DriverMeta {
        host,
        clock_error: f64::MAX,
        ..DriverMeta::default()
    };
    for _ in 0..PINGS {
        let (sent_at, sent) = (now(), Instant::now());
        wire::send(output, &Command::Ping).await?;
        let at = loop {
            if let Answer::Pong { at } = wire::receive(input).await? {
                break at;
            }
        };
        let half = sent.elapsed().as_secs_f64() / 2.0;
        if half < meta.clock_error {
            meta.clock_error = half;
            meta.clock_offset = sent_at + half - at;
        }
    }
    Ok(Ok(meta))
}

async fn write(
    mut output: Output,
    mut queue: async_mpsc::UnboundedReceiver<Command>,
    report: mpsc::Sender<Report>,
    index: usize,
) {
    while let Some(command) = queue.recv().await {
        if let Err(error) = wire::send(&mut output, &command).await {
            let _ = report.send((index, DriverMessage::Lost(error.to_string())));
            return;
        }
    }
}

async fn read(mut input: Input, report: mpsc::Sender<Report>, index: usize) {
    let lost = loop {
        match tokio::time::timeout(SILENCE_TIMEOUT, wire::receive::<Answer>(&mut input)).await {
            Ok(Ok(Answer::Event(event))) => {
                if report.send((index, DriverMessage::Event(*event))).is_err() {
                    return;
                }
            }
            Ok(Ok(Answer::Refused(why))) => break why,
            Ok(Ok(_)) => {}
            Ok(Err(WireError::Io(error))) if error.kind() == Eof => {
                break "it ended its connection".to_owned();
            }
            Ok(Err(WireError::Io(error))) => break format!("its connection ended ({error})"),
            Ok(Err(error)) => break error.to_string(),
            Err(_) => break format!("it said nothing for {} s", SILENCE_TIMEOUT.as_secs()),
        }
    };
    let _ = report.send((index, DriverMessage::Lost(lost)));
}

impl Link for RemoteLink {
    fn meta(&self) -> DriverMeta {
        self.meta.clone()
    }

    fn start(&mut self, number: u32, stage: &Stage, begin_at: f64) -> Result<(), String> {
        let begin_at = begin_at - self.meta.clock_offset;
        let command = Command::Stage {
            number,
            stage: Box::new(stage.clone()),
            begin_at,
        };
        self.commands
            .send(command)
            .map_err(|_| "its connection has ended".to_owned())
    }

    fn end_work(&mut self, work: u32) {
        // A lost driver has nothing to end.
        let _ = self.commands.send(Command::EndWork(work));
    }

    fn cancel(&mut self) {
        let _ = self.commands.send(Command::Cancel);
    }
}
