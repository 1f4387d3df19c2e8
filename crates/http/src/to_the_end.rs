//! Futures that are completed even if their caller is dropped.
//!
//! A write that has begun is carried to its end although its client has left. Usually the caller
//! stays, so the future is polled in place, without the cost of a task. Only if it is dropped early
//! is it spawned as a task.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// Runs `work` to its end; `None` if it panicked.
///
/// Not an `async fn`: its future would contain `work` twice, as an argument and as the awaited
/// value, and so would each caller's future for as long as it waits for something else.
pub fn to_the_end<T, F>(work: F) -> impl Future<Output = Option<T>> + Send
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    UnderWay(Some(Box::pin(work)))
}

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The work in progress; `None` when it has ended.
struct UnderWay<T: Send + 'static>(Option<Work<T>>);

impl<T: Send + 'static> Future for UnderWay<T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let Some(mut work) = self.0.take() else {
            return Poll::Ready(None);
        };
        match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
            Ok(Poll::Ready(value)) => Poll::Ready(Some(value)),
            Ok(Poll::Pending) => {
                self.0 = Some(work);
                Poll::Pending
            }
            Err(_) => Poll::Ready(None),
        }
    }
}

impl<T: Send + 'static> Drop for UnderWay<T> {
    fn drop(&mut self) {
        // Without a runtime the process is ending.
        if let (Some(work), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(work);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn it_goes_on_when_nobody_waits() {
        let (go_on, may_go_on) = oneshot::channel::<u8>();
        let (done, is_done) = oneshot::channel();
        let work = to_the_end(async move {
            let got = may_go_on.await.unwrap();
            done.send(got).unwrap();
        });
        assert!(work.now_or_never().is_none(), "it has to wait");
        go_on.send(7).unwrap();
        assert_eq!(is_done.await.unwrap(), 7);
    }

    #[test]
    fn its_future_has_no_room_for_the_work() {
        let large = [7; 10_000];
        let work = to_the_end(async move {
            tokio::task::yield_now().await;
            large[0]
        });
        assert!(size_of_val(&work) <= 4 * size_of::<usize>());
        std::mem::forget(work);
    }

    #[tokio::test]
    async fn who_waits_is_told() {
        assert_eq!(to_the_end(async { 7 }).await, Some(7));
        let late = to_the_end(async {
            tokio::task::yield_now().await;
            8
        });
        assert_eq!(late.await, Some(8));
        let panics = to_the_end(async {
            tokio::task::yield_now().await;
            panic!("on purpose");
        });
        assert_eq!(panics.await, None::<u8>);
    }
}
