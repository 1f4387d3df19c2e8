//! Whether a connection waits for its client, and how slow that client is.
//!
//! A server waits for a client in three ways: for the next request's head, for more of a request's
//! body, and for room in the socket to send an answer. [`Watched`] notes the last, a request's body
//! (`body.rs`) the second; the first is whenever no request is under way. Time that the server itself
//! takes is nobody's fault and is not counted.
//!
//! Content that was read for an answer and that its socket has not taken is counted, for each
//! connection and for all (`unsent.rs`). While all together have much of it, an answer goes on only when
//! its socket has taken what it had: thousands of clients that read nothing hold one piece each.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::task::AtomicWaker;
use http_body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::unsent;

/// A client that needs long for this much is slow, however often it moves a byte.
const SLOW_BYTES: u64 = 16 << 10;

/// While others wait for memory, a client that was waited for this long for the last few KiB is cut
/// off.
const STALLED_MAX_MS: u64 = 4000;
/// From one look at that to the next.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Time spent waiting for a client, in milliseconds on the clock of [`Progress`].
#[derive(Default)]
struct Waits {
    /// When the present wait began; 0: there is none.
    began: AtomicU64,
    /// Waited since [`SLOW_BYTES`] were moved last, the present wait excepted.
    waited: AtomicU64,
    /// Bytes moved meanwhile.
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
            // The usual case: nothing was waited for.
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

    /// Of the present wait alone.
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

/// What a connection waits for. Written by its own task, read by whoever looks for connections that
/// can be closed.
pub(crate) struct Progress {
    start: Instant,
    /// Requests whose answers are not all with the socket.
    under_way: AtomicU32,
    idle_since: AtomicU64,
    bodies: Waits,
    writes: Waits,
    /// Bytes of bodies that the socket has not taken yet, or fewer: heads are not counted when they
    /// are handed over, but when they are taken.
    unsent: AtomicUsize,
    /// Wakes an answer that waits until there are none.
    all_sent: AtomicWaker,
}

/// How a connection waits for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// No: the server works.
    No,
    /// For a request, since then.
    Idle(Duration),
    /// For bytes of a body or for an answer to be read; waited so long for the last few KiB.
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
            all_sent: AtomicWaker::new(),
        })
    }

    /// As of a connection that has been idle for so long.
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

    /// Never 0.
    fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64 + 1
    }

    /// A request has come; it is under way until the guard is dropped.
    pub(crate) fn begin_request(self: &Arc<Self>) -> UnderWay {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        self.bodies.forget();
        UnderWay(self.clone())
    }

    /// Bytes of a body were handed over, to be sent.
    fn hand_over(&self, bytes: usize) {
        self.unsent.fetch_add(bytes, Ordering::Relaxed);
        unsent::add(bytes);
    }

    /// The socket took so much, of a body or its head; called by the task that hands over.
    fn sent(&self, bytes: usize) {
        let unsent = self.unsent.load(Ordering::Relaxed);
        if unsent == 0 {
            return;
        }
        let fewer = unsent.min(bytes);
        self.unsent.store(unsent - fewer, Ordering::Relaxed);
        unsent::remove(fewer);
        if fewer == unsent {
            self.all_sent.wake();
        }
    }

    /// Nothing is left to be sent: not of a body either that was longer than its head says.
    fn sent_all(&self) {
        self.sent(usize::MAX);
    }

    /// Ready when an answer may go on: in a crowd when the socket has taken what it had. Until then
    /// there is something for that socket to take, so that it is woken.
    fn poll_turn(&self, cx: &mut Context<'_>) -> Poll<()> {
        let has_sent_all = self.unsent.load(Ordering::Relaxed) == 0;
        if has_sent_all || !unsent::is_crowded() {
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

    /// Nobody reads the body any more.
    pub(crate) fn forget_body(&self) {
        self.bodies.forget();
    }

    /// Whether a request is under way: its answer is not all with the socket.
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

    /// Comes back when the client has moved not a byte for `timeout` while it was waited for with a
    /// request under way. For a body somewhat longer: services that read one have timers of their
    /// own, and answer 408. Also when others wait for memory that it keeps.
    pub(crate) async fn silent_for(&self, timeout: Duration) {
        let limit = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        loop {
            let now = self.now();
            let bodies = self.bodies.silent(now) / 5 * 4;
            let silent = bodies.max(self.writes.silent(now));
            if silent >= limit || self.keeps_memory_from_others(now) {
                return;
            }
            // At least a part of it, so that a wait that ends and begins costs few timers.
            let left = Duration::from_millis(limit - silent).max(timeout / 8);
            tokio::time::sleep(left.min(LOOK_AGAIN)).await;
        }
    }

    fn keeps_memory_from_others(&self, now: u64) -> bool {
        unsent::is_needed()
            && self.unsent.load(Ordering::Relaxed) > 0
            && self.writes.stalled(now) >= Some(STALLED_MAX_MS)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.sent_all();
    }
}

/// A request is under way.
pub(crate) struct UnderWay(Arc<Progress>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        let progress = &self.0;
        progress.idle_since.store(progress.now(), Ordering::Relaxed);
        progress.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An answer's body, which keeps its request under way until the socket has all of it.
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

/// A socket that notes when there is no room in it to write.
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

    /// Called when those above have written all they had.
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

    /// An answer of three pieces.
    fn answering(progress: &Arc<Progress>) -> Answering<Body> {
        let pieces = ["one", "two", "three"].map(|piece| Ok(bytes::Bytes::from(piece)));
        let body = Body::from_stream(futures_util::stream::iter(pieces), None);
        Answering::new(body, progress.begin_request())
    }

    /// Whether there is another piece now.
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
        let crowd = unsent::tests::Crowd::gather();
        let progress = Progress::new();
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
        // Others' connections have ended.
        drop(crowd);
        assert!(has_next(&mut answer, cx));
        let _crowd = unsent::tests::Crowd::gather();
        // A request that came while the answer before it is being sent.
        let mut next = answering(&progress);
        assert!(!has_next(&mut next, cx), "the last answer is unsent");
        // Its body was longer than its head said.
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
        let waits = tokio::spawn(unsent::Reserved::take(1));
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
