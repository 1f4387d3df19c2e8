//! Server of `cairn lab driver`: waits for a controller, generates the load it requests, and
//! reports results. One controller at a time; the load ends with its connection.

use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::{Context, Result};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncWrite, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, mpsc as async_mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::link::{DriverMessage, Link, LocalLink, Report};
use super::wire::{self, Answer, Command, WireError};
use crate::drive::{Driver, Pools, now};
use crate::resources::host;

/// Time for a controller to authenticate.
const PROOF_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum concurrent connections that have not authenticated.
const UNPROVEN_MAX: usize = 16;
const ALIVE: Duration = Duration::from_secs(2);

/// Serves controllers on `bind` until the process ends; `ready` gets the address.
///
/// # Errors
/// No certificate can be made, or the address cannot be listened on.
pub async fn serve(
    bind: SocketAddr,
    secret: String,
    threads: u32,
    ready: impl FnOnce(SocketAddr),
) -> Result<()> {
    accept(bind, secret, threads, ready, false).await
}

/// Serves until the first controller has disconnected.
///
/// # Errors
/// No certificate can be made, or the address cannot be listened on.
pub async fn serve_once(
    bind: SocketAddr,
    secret: String,
    threads: u32,
    ready: impl FnOnce(SocketAddr),
) -> Result<()> {
    accept(bind, secret, threads, ready, true).await
}

async fn accept(
    bind: SocketAddr,
    secret: String,
    threads: u32,
    ready: impl FnOnce(SocketAddr),
    once: bool,
) -> Result<()> {
    let acceptor = TlsAcceptor::from(Arc::new(server_config()?));
    let listener = TcpListener::bind(bind)
        .await
        .with_context(|| format!("cannot listen on {bind}"))?;
    ready(listener.local_addr()?);
    let secret: Arc<str> = secret.into();
    let busy = Arc::new(Mutex::new(()));
    let strangers = Arc::new(tokio::sync::Semaphore::new(UNPROVEN_MAX));
    let (gone, mut was_gone) = async_mpsc::unbounded_channel();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(()) = was_gone.recv() => {
                if once {
                    return Ok(());
                }
                continue;
            }
        };
        let Ok((stream, _)) = accepted else {
            // Probably out of file descriptors: other connections must end first.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Ok(permit) = strangers.clone().try_acquire_owned() else {
            continue;
        };
        let (acceptor, secret, busy) = (acceptor.clone(), secret.clone(), busy.clone());
        let gone = gone.clone();
        tokio::spawn(async move {
            let proved =
                tokio::time::timeout(PROOF_TIMEOUT, prove(stream, &acceptor, &secret)).await;
            drop(permit);
            let Ok(Ok(stream)) = proved else { return };
            let (mut input, mut output) = split(stream);
            let Ok(_turn) = busy.try_lock_owned() else {
                let why = "it drives for another controller now".to_owned();
                let _ = wire::send(&mut output, &Answer::Refused(why)).await;
                return;
            };
            if let Err(error) = attend(&mut input, &mut output, threads).await {
                let _ = wire::send(&mut output, &Answer::Refused(error.to_string())).await;
            }
            let _ = gone.send(());
        });
    }
}

fn server_config() -> Result<ServerConfig> {
    let made = rcgen::generate_simple_self_signed(vec!["cairn-lab-driver".to_owned()])?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    Ok(
        ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)?,
    )
}

async fn prove(
    stream: TcpStream,
    acceptor: &TlsAcceptor,
    secret: &str,
) -> Result<TlsStream<TcpStream>, WireError> {
    stream.set_nodelay(true)?;
    let mut stream = acceptor.accept(stream).await?;
    let theirs = wire::proof(stream.get_ref().1, secret, wire::CONTROLLER)?;
    let mine = wire::proof(stream.get_ref().1, secret, wire::DRIVER)?;
    wire::check_proof(&mut stream, theirs).await?;
    wire::send_proof(&mut stream, mine).await?;
    Ok(stream)
}

/// Serves one controller, from its hello to its end.
async fn attend(
    input: &mut (impl AsyncRead + Unpin),
    output: &mut (impl AsyncWrite + Unpin),
    threads: u32,
) -> Result<(), WireError> {
    let hello = tokio::time::timeout(PROOF_TIMEOUT, wire::receive::<Command>(input)).await;
    let hello = hello.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
    let (answers, mut queue) = async_mpsc::unbounded_channel();
    let Some(mut link) = local_link(hello, threads, &answers) else {
        let why = format!("its messages are not of version {}", wire::VERSION);
        return wire::send(output, &Answer::Refused(why)).await;
    };
    wire::send(output, &Answer::Welcome { host: host() }).await?;
    let reading = obey(input, &mut link, &answers);
    let writing = async {
        loop {
            let answer = match tokio::time::timeout(ALIVE, queue.recv()).await {
                Ok(Some(answer)) => answer,
                Ok(None) => return Ok(()),
                Err(_) => Answer::Alive,
            };
            wire::send(output, &answer).await?;
        }
    };
    let result = tokio::select! {
        result = reading => result,
        result = writing => result,
    };
    link.cancel();
    match result {
        // The controller has finished or disconnected: there is nobody to report to.
        Err(WireError::Io(_)) => Ok(()),
        result => result,
    }
}

/// Executes the controller's commands until it disconnects.
async fn obey(
    input: &mut (impl AsyncRead + Unpin),
    link: &mut LocalLink,
    answers: &async_mpsc::UnboundedSender<Answer>,
) -> Result<(), WireError> {
    loop {
        match wire::receive::<Command>(input).await? {
            // Handled at the start.
            Command::Hello { .. } => {}
            Command::Ping => drop(answers.send(Answer::Pong { at: now() })),
            Command::EndWork(work) => link.end_work(work),
            Command::Cancel => link.cancel(),
            Command::Stage {
                number,
                stage,
                begin_at,
            } => {
                if let Err(error) = link.start(number, &stage, begin_at) {
                    let event = crate::drive::Event::StageDone {
                        error: Some(error),
                        unusable: false,
                    };
                    let _ = answers.send(Answer::Event(Box::new(event)));
                }
            }
        }
    }
}

/// A driver in this process whose reports are sent as messages; `None` for the hello of another
/// version.
fn local_link(
    hello: Command,
    threads: u32,
    answers: &async_mpsc::UnboundedSender<Answer>,
) -> Option<LocalLink> {
    let Command::Hello {
        version,
        name,
        share,
        seed,
        access,
        options,
        resources,
        watched,
        ..
    } = hello
    else {
        return None;
    };
    if version != wire::VERSION {
        return None;
    }
    let (report, reports) = mpsc::channel::<Report>();
    let answers = answers.clone();
    let forward = move || {
        while let Ok((_, DriverMessage::Event(event))) = reports.recv() {
            if answers.send(Answer::Event(Box::new(event))).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("reports".into())
        .spawn(forward)
        .ok()?;
    let driver = Driver {
        name,
        share,
        seed,
        access: *access,
        options,
        threads,
        pools: Arc::new(Pools::default()),
    };
    let sampling = (!resources.is_zero()).then_some(resources);
    Some(LocalLink::new(driver, 0, report, sampling, watched))
}
