//! Progress of a connection: whether it waits for its client, and how slow that client is.
//!
//! A server waits for a client in three ways: for the next request's head, for more of a request's
//! body, and for room in the socket to send a response. [`Watched`] records the last, a request's
//! body (`body.rs`) the second; the first is the state while no request is in progress. Time that
//! the server itself takes is not counted.
//!
//! Response content that the socket has not taken yet is counted for each connection, its address
//! and the process (`unsent.rs`). While the process has much of it, responses of addresses with
//! more than their share continue only when their sockets have taken all previous content, so
//! thousands of clients that read nothing hold one piece each.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::task::AtomicWaker;
use http_body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::unsent::{self, Account};

/// Bytes over which a client's speed is measured: one that takes long for these is slow, however
/// often it moves a byte.
const SLOW_BYTES: u64 = 16 << 10;

/// Milliseconds that a client may be waited for during the last few KiB before it is disconnected,
/// while others wait for memory.
const STALLED_MAX_MS: u64 = 4000;
/// Interval of the checks for that.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Time spent waiting for a client, in milliseconds of [`Progress`]'s clock.
#[derive(Default)]
struct Waits {
    /// Start of the present wait; 0: there is none.
    began: AtomicU64,
    /// Time waited since the last [`SLOW_BYTES`] were moved, without the present wait.
    waited: AtomicU64,
    /// Bytes moved in that time.
    moved: AtomicU64,
}

impl Waits {
    fn begin(&self, now: impl FnOnce() -> u64) {
        if self.began.load(Ordering::Relaxed) == 0 {
            self.began.store(now(), Ordering::Relaxed);
        }
    }

    fn end(&self, bytes: u64, now: impl FnOnce() -> u64) {
        let began = self.began.load(Ordering::Relaxed);
        let mut waited = self.waited.load(Ordering::Relaxed);
        if began == 0 && waited == 0 {
            // The common case: there was no wait.
            return;
        }
        if began != 0 {
            waited += now().saturating_sub(began);
            self.began.store(0, Ordering::Relaxed);
        }
        let moved = self.moved.load(Ordering::Relaxed) + bytes;
        let (waited, moved) = match moved >= SLOW_BYTES {
            true => (0, 0),
            false => (waited, moved),
        };
        self.waited.store(waited, Ordering::Relaxed);
        self.moved.store(moved, Ordering::Relaxed);
    }

    fn forget(&self) {
        self.began.store(0, Ordering::Relaxed);
        self.waited.store(0, Ordering::Relaxed);
        self.moved.store(0, Ordering::Relaxed);
    }

    /// Duration of the present wait alone.
    fn silent(&self, now: u64) -> u64 {
        match self.began.load(Ordering::Relaxed) {
            0 => 0,
            began => now.saturating_sub(began),
        }
    }

    fn stalled(&self, now: u64) -> Option<u64> {
        let began = self.began.load(Ordering::Relaxed);
        (began != 0).then(|| now.saturating_sub(began) + self.waited.load(Ordering::Relaxed))
    }
}

/// The waiting state of a connection. Written by its own task, read by those that look for
/// connections to close.
pub(crate) struct Progress {
    start: Instant,
    /// Number of requests whose response is not completely in the socket yet.
    under_way: AtomicU32,
    idle_since: AtomicU64,
    bodies: Waits,
    writes: Waits,
    /// A lower bound of the body bytes that the socket has not taken yet: bytes of heads are not
    /// added when they are handed over, but are subtracted when they are taken.
    unsent: AtomicUsize,
    /// The count of the client's address; not set before the address is known.
    account: OnceLock<Account>,
    /// Wakes a response that waits until there are none.
    all_sent: AtomicWaker,
}

/// The way in which a connection waits for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// It does not wait: the server works.
    No,
    /// For a request, for this long.
    Idle(Duration),
    /// For bytes of a body or for a response to be read; total wait during the last few KiB.
    Stalled(Duration),
}

impl Progress {
    pub(crate) fn new() -> Arc<Progress> {
        Arc::new(Progress {
            start: Instant::now(),
            under_way: AtomicU32::new(0),
            idle_since: AtomicU64::new(1),
            bodies: Waits::default(),
            writes: Waits::default(),
            unsent: AtomicUsize::new(0),
            account: OnceLock::new(),
            all_sent: AtomicWaker::new(),
        })
    }

    /// Progress of a connection that has been idle for this long.
    #[cfg(test)]
    pub(crate) fn begun_before(time: Duration) -> Arc<Progress> {
        let mut progress = Progress::new();
        if let (Some(progress), Some(start)) = (
            Arc::get_mut(&mut progress),
            Instant::now().checked_sub(time),
        ) {
            progress.start = start;
        }
        progress
    }

    /// Milliseconds since the start, from 1 on: 0 means "no wait".
    fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64 + 1
    }

    /// Sets the client's address, once, before the first response.
    pub(crate) fn set_address(&self, address: IpAddr) {
        self.account.get_or_init(|| Account::open(address));
    }

    /// Begins a request, which is in progress until the guard is dropped.
    pub(crate) fn begin_request(self: &Arc<Self>) -> UnderWay {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        self.bodies.forget();
        UnderWay(self.clone())
    }

    /// Counts bytes of a body that were handed over for sending.
    fn hand_over(&self, bytes: usize) {
        self.unsent.fetch_add(bytes, Ordering::Relaxed);
        unsent::add(self.account.get(), bytes);
    }

    /// Subtracts bytes of a body or head that the socket took; called by the task that hands over.
    fn sent(&self, bytes: usize) {
        let unsent = self.unsent.load(Ordering::Relaxed);
        if unsent == 0 {
            return;
        }
        let fewer = unsent.min(bytes);
        self.unsent.store(unsent - fewer, Ordering::Relaxed);
        unsent::remove(self.account.get(), fewer);
        if fewer == unsent {
            self.all_sent.wake();
        }
    }

    /// Nothing is left to be sent, not even of a body that was longer than its head declared.
    fn sent_all(&self) {
        self.sent(usize::MAX);
    }

    /// Ready when a response may continue: if memory is scarce, when the socket has taken all
    /// previous content. Until then the socket has something to take, so the task will be woken.
    fn poll_turn(&self, cx: &mut Context<'_>) -> Poll<()> {
        let has_sent_all = self.unsent.load(Ordering::Relaxed) == 0;
        if has_sent_all || !unsent::is_crowded(self.account.get()) {
            return Poll::Ready(());
        }
        self.all_sent.register(cx.waker());
        Poll::Pending
    }

    pub(crate) fn awaits_body(&self) {
        self.bodies.begin(|| self.now());
    }

    pub(crate) fn got_body(&self, bytes: usize) {
        self.bodies.end(bytes as u64, || self.now());
    }

    /// The body was abandoned.
    pub(crate) fn forget_body(&self) {
        self.bodies.forget();
    }

    /// Is a request in progress, that is, not completely answered into the socket?
    pub(crate) fn has_request(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn waiting(&self) -> Waiting {
        let now = self.now();
        let stalled = self.bodies.stalled(now).max(self.writes.stalled(now));
        if let Some(stalled) = stalled {
            return Waiting::Stalled(Duration::from_millis(stalled));
        }
        if self.has_request() {
            return Waiting::No;
        }
        let since = self.idle_since.load(Ordering::Relaxed);
        Waiting::Idle(Duration::from_millis(now.saturating_sub(since)))
    }

    /// Returns when the client has not moved a byte for `timeout` while it was waited for during a
    /// request, or when it holds memory that others wait for. For bodies the time is somewhat
    /// longer: services that read one have timers of their own, and respond 408.
    pub(crate) async fn silent_for(&self, timeout: Duration) {
        let limit = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        loop {
            let now = self.now();
            let bodies = self.bodies.silent(now) / 5 * 4;
            let silent = bodies.max(self.writes.silent(now));
            if silent >= limit || self.keeps_memory_from_others(now) {
                return;
            }
            // At least an eighth of the timeout, so that frequent short waits cost few timers.
            let left = Duration::from_millis(limit - silent).max(timeout / 8);
            tokio::time::sleep(left.min(CHECK_INTERVAL)).await;
        }
    }

    fn keeps_memory_from_others(&self, now: u64) -> bool {
        self.unsent.load(Ordering::Relaxed) > 0
            && self.writes.stalled(now) >= Some(STALLED_MAX_MS)
            && unsent::is_needed(self.account.get().map(Account::address))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.sent_all();
    }
}

/// Guard of a request in progress.
pub(crate) struct UnderWay(Arc<Progress>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        let progress = &self.0;
        progress.idle_since.store(progress.now(), Ordering::Relaxed);
        progress.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A response's body that keeps its request in progress until the socket has taken all of it.
pub(crate) struct Answering<B> {
    body: B,
    under_way: UnderWay,
}

impl<B> Answering<B> {
    pub(crate) fn new(body: B, under_way: UnderWay) -> Self {
        Answering { body, under_way }
    }
}

impl<B: http_body::Body<Data = bytes::Bytes> + Unpin> http_body::Body for Answering<B> {
    type Data = bytes::Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<bytes::Bytes>, B::Error>>> {
        std::task::ready!(self.under_way.0.poll_turn(cx));
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(piece) = frame.data_ref()
        {
            self.under_way.0.hand_over(piece.len());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A socket that records when it has no room for writing.
pub(crate) struct Watched<S> {
    socket: S,
    progress: Arc<Progress>,
}

impl<S> Watched<S> {
    pub(crate) fn new(socket: S, progress: Arc<Progress>) -> Self {
        Watched { socket, progress }
    }

    fn note(&self, written: &Poll<io::Result<usize>>) {
        let (writes, now) = (&self.progress.writes, || self.progress.now());
        match written {
            Poll::Pending => writes.begin(now),
            Poll::Ready(Ok(bytes)) => {
                writes.end(*bytes as u64, now);
                self.progress.sent(*bytes);
            }
            Poll::Ready(Err(_)) => {}
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(cx, buf);
        self.note(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
        self.note(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    /// Called when the layers above have written all they had.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            self.progress.sent_all();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod in_a_crowd;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::body::Body;

    #[test]
    fn a_client_that_moves_a_byte_now_and_then_is_slow() {
        let waits = Waits::default();
        for second in 1..=5_u64 {
            waits.begin(|| second * 1000);
            waits.end(1, || second * 1000 + 900);
        }
        waits.begin(|| 6000);
        assert_eq!(waits.stalled(6100), Some(4600));
        assert_eq!(waits.silent(6100), 100);
        waits.end(SLOW_BYTES, || 6100);
        waits.begin(|| 7000);
        assert_eq!(waits.stalled(7010), Some(10));
        waits.forget();
        assert_eq!(waits.stalled(8000), None);
    }

    /// A response of three pieces.
    fn answering(progress: &Arc<Progress>) -> Answering<Body> {
        let pieces = ["one", "two", "three"].map(|piece| Ok(bytes::Bytes::from(piece)));
        let body = Body::from_stream(futures_util::stream::iter(pieces), None);
        Answering::new(body, progress.begin_request())
    }

    /// Is another piece available now?
    fn has_next(answering: &mut Answering<Body>, cx: &mut Context<'_>) -> bool {
        let polled = http_body::Body::poll_frame(Pin::new(answering), cx);
        matches!(polled, Poll::Ready(Some(Ok(_))))
    }

    #[tokio::test]
    async fn in_a_crowd_an_answer_waits_for_its_socket() {
        use futures_util::task::{ArcWake, waker};
        use tokio::io::AsyncWriteExt;

        #[derive(Default)]
        struct Woken(AtomicU32);
        impl ArcWake for Woken {
            fn wake_by_ref(woken: &Arc<Self>) {
                woken.0.fetch_add(1, Ordering::Relaxed);
            }
        }

        let woken = Arc::new(Woken::default());
        let waker = waker(woken.clone());
        let cx = &mut Context::from_waker(&waker);
        let _alone = unsent::tests::ALONE.lock().await;
        let crowd = unsent::tests::Crowd::gather([192, 0, 2, 1]);
        let progress = Progress::new();
        progress.set_address([192, 0, 2, 1].into());
        let (socket, _other_end) = tokio::io::duplex(1000);
        let mut socket = Watched::new(socket, progress.clone());
        let mut answer = answering(&progress);
        assert!(has_next(&mut answer, cx));
        assert!(!has_next(&mut answer, cx), "nothing was sent");
        socket.write_all(b"on").await.unwrap();
        assert!(!has_next(&mut answer, cx), "not all was sent");
        assert_eq!(woken.0.load(Ordering::Relaxed), 0);
        socket.write_all(b"e").await.unwrap();
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert!(has_next(&mut answer, cx));
        assert!(!has_next(&mut answer, cx));
        // The other connections have ended.
        drop(crowd);
        assert!(has_next(&mut answer, cx));
        let _crowd = unsent::tests::Crowd::gather([192, 0, 2, 1]);
        // A request that arrives while the previous response is being sent.
        let mut next = answering(&progress);
        assert!(!has_next(&mut next, cx), "the last answer is unsent");
        // The body was longer than its head declared.
        socket.write_all(b"tw").await.unwrap();
        assert!(!has_next(&mut next, cx));
        socket.flush().await.unwrap();
        assert!(has_next(&mut next, cx));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_is_cut_off_while_others_wait_for_memory() {
        let _alone = unsent::tests::ALONE.lock().await;
        let of = |stalled_for: u64, unsent: usize| {
            let progress = Progress::begun_before(Duration::from_secs(10));
            progress.writes.begin(|| progress.now() - stalled_for);
            progress.hand_over(unsent);
            progress
        };
        let stalls = of(STALLED_MAX_MS, 1);
        let cut_off = tokio::spawn(async move {
            stalls.silent_for(Duration::from_secs(60)).await;
        });
        let others = [of(0, 1), of(STALLED_MAX_MS, 0)];
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!cut_off.is_finished(), "there is memory enough");
        let _all = unsent::tests::reserve_all().await;
        let waits = tokio::spawn(unsent::Reserved::take(None, 1));
        let in_time = tokio::time::timeout(Duration::from_secs(10), cut_off).await;
        assert!(in_time.is_ok());
        for other in others {
            assert!(!other.keeps_memory_from_others(other.now()));
        }
        waits.abort();
    }

    #[test]
    fn the_server_s_own_time_is_not_counted() {
        let progress = Progress::new();
        assert!(matches!(progress.waiting(), Waiting::Idle(_)));
        let request = progress.begin_request();
        assert_eq!(progress.waiting(), Waiting::No);
        progress.awaits_body();
        assert!(matches!(progress.waiting(), Waiting::Stalled(_)));
        progress.got_body(7);
        assert_eq!(progress.waiting(), Waiting::No);
        drop(request);
        assert!(matches!(progress.waiting(), Waiting::Idle(_)));
    }
}
