//! Entry point of the fuzz target for uploads in several MIME documents; a test runs it over its
//! seeds.

use std::time::Duration;

use bytes::Bytes;
use cairn_http::Body;

use super::documents::Documents;

const BOUNDARY: &str = "B";
/// Never reached: all bytes are present.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Parses a body with the boundary "B", in chunks of the first byte's length: chunking must not
/// matter.
pub fn documents(input: &[u8]) {
    let [size, text @ ..] = input else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    let Ok(runtime) = runtime else {
        return;
    };
    runtime.block_on(async {
        let whole = upload(text, text.len()).await;
        assert_eq!(upload(text, (*size).into()).await, whole);
        let whole = all(text, text.len()).await;
        assert_eq!(all(text, (*size).into()).await, whole);
    });
}

async fn open(text: &[u8], size: usize) -> Option<Documents> {
    let pieces = text.chunks(size.max(1));
    let pieces: Vec<_> = pieces.map(|p| Ok(Bytes::copy_from_slice(p))).collect();
    let body = Body::from_stream(futures_util::stream::iter(pieces), None);
    Documents::open(body, BOUNDARY, TIMEOUT).await.ok()
}

/// Reads the body like an upload: content, footers, commit; returns a log up to the first error.
async fn upload(text: &[u8], size: usize) -> Vec<String> {
    let mut steps = Vec::new();
    let Some(mut documents) = open(text, size).await else {
        return steps;
    };
    let Ok(content) = documents.collect().await else {
        return steps;
    };
    steps.push(format!("{content:?}"));
    let Ok(footers) = documents.footers().await else {
        return steps;
    };
    steps.push(format!("{footers:?}"));
    let Ok(commit) = documents.reads_commit().await else {
        return steps;
    };
    steps.push(format!("{commit} {}", documents.drain().await.is_ok()));
    steps
}

/// Reads each document's head and content.
async fn all(text: &[u8], size: usize) -> Vec<String> {
    let mut found = Vec::new();
    let Some(mut documents) = open(text, size).await else {
        return found;
    };
    loop {
        let Ok(content) = documents.collect().await else {
            return found;
        };
        found.push(format!("{content:?}"));
        match documents.next().await {
            Ok(Some(head)) => found.push(format!("{head:?}")),
            other => {
                found.push(format!("{}", other.is_ok()));
                return found;
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    #[test]
    fn seeds() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/documents");
        for seed in std::fs::read_dir(folder).unwrap() {
            super::documents(&std::fs::read(seed.unwrap().path()).unwrap());
        }
    }
}
