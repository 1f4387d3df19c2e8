//! The end of a server, as requests that wait for something see it: they should answer at once then, and
//! not hold up the shutdown.

use http::Extensions;
use tokio::sync::watch;

/// Signal that the server to which a request came is to end; in the extensions of requests that
/// announce a wait (`?wait=`).
#[derive(Clone)]
pub struct Ending(watch::Receiver<bool>);

impl Ending {
    pub(crate) fn new(stop: watch::Receiver<bool>) -> Self {
        Ending(stop)
    }

    /// Returns when the server of a request is to end; never for a request that came over no socket.
    pub async fn begun(extensions: &Extensions) {
        let Some(Ending(stop)) = extensions.get::<Ending>() else {
            return std::future::pending().await;
        };
        // An error: the server is gone.
        let _ = stop.clone().wait_for(|stop| *stop).await;
    }
}

/// Whether a request announces that it waits.
pub(crate) fn announces_wait(uri: &http::Uri) -> bool {
    let mut params = uri.query().unwrap_or_default().split('&');
    params.any(|param| param.starts_with("wait="))
}
