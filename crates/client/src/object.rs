//! Typed calls for objects and containers.

use bytes::Bytes;
use cairn_http::{Body, Response};
use http::header::{
    CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue, IF_MATCH,
    IF_NONE_MATCH, RANGE,
};
use http::{Method, StatusCode};

use crate::error::{ClientError, WriteError};
use crate::manifest::ManifestEntry;
use crate::payload::Payload;
use crate::retries::Repeat;
use crate::swift::Swift;
use crate::url::{encode_path, encode_value};

/// Maximum bytes of a manifest: Swift's default for a PUT is 8 MiB, and a GET adds ETags and dates.
const MANIFEST_MAX_BYTES: u64 = 64 << 20;

/// Length from which on a range is read without a copy on the way.
const DIRECT_MIN_BYTES: u64 = 256 << 10;

/// A condition on the existing object; the request fails if it does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Condition<'a> {
    #[default]
    None,
    /// `If-None-Match: *`: there is no object.
    Absent,
    /// `If-Match` with this ETag, without quotes.
    Matches(&'a str),
}

impl Condition<'_> {
    fn repeat(self) -> Repeat {
        match self {
            Condition::None => Repeat::Always,
            Condition::Absent | Condition::Matches(_) => Repeat::Unsent,
        }
    }

    fn put_into(self, headers: &mut HeaderMap) -> Result<(), ClientError> {
        match self {
            Condition::None => {}
            Condition::Absent => {
                headers.insert(IF_NONE_MATCH, HeaderValue::from_static("*"));
            }
            Condition::Matches(etag) => {
                headers.insert(IF_MATCH, value(&format!("\"{etag}\""))?);
            }
        }
        Ok(())
    }
}

/// Parameters of reading an object.
#[derive(Clone, Copy, Debug, Default)]
pub struct GetQuery<'a> {
    /// First byte, and number of bytes, at least one.
    pub range: Option<(u64, u64)>,
    pub condition: Condition<'a>,
    /// Ask all servers of the object instead of taking the first response (`X-Newest`).
    pub is_newest: bool,
}

impl GetQuery<'_> {
    fn headers(self) -> Result<HeaderMap, ClientError> {
        let mut headers = match self.is_newest {
            true => newest(),
            false => HeaderMap::new(),
        };
        if let Some((first, length)) = self.range {
            let last = first + length.max(1) - 1;
            headers.insert(RANGE, value(&format!("bytes={first}-{last}"))?);
        }
        self.condition.put_into(&mut headers)?;
        Ok(headers)
    }
}

/// Metadata of an object from a response's headers.
#[derive(Clone, Debug)]
pub struct Info {
    pub bytes: u64,
    /// ETag without quotes.
    pub etag: String,
    pub content_type: String,
    pub headers: HeaderMap,
}

impl Info {
    fn of(headers: HeaderMap) -> Info {
        let text = |name: &HeaderName| {
            let value = headers.get(name).and_then(|value| value.to_str().ok());
            value.unwrap_or_default()
        };
        Info {
            bytes: text(&CONTENT_LENGTH).parse().unwrap_or(0),
            etag: text(&ETAG).trim_matches('"').to_owned(),
            content_type: text(&CONTENT_TYPE).to_owned(),
            headers,
        }
    }

    /// A header's value, if it is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub fn is_static_large_object(&self) -> bool {
        let header = self.header("x-static-large-object");
        header.is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }
}

fn value(text: &str) -> Result<HeaderValue, ClientError> {
    // Swift's headers are UTF-8.
    let wrong = |_| ClientError::Invalid(format!("{text:?} cannot be sent in a header"));
    HeaderValue::from_bytes(text.as_bytes()).map_err(wrong)
}

/// Headers that ask all servers of an object, not the first that responds.
fn newest() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("x-newest", HeaderValue::from_static("true"));
    headers
}

fn path_of(container: &str, object: &str) -> String {
    format!("/{}/{}", encode_value(container), encode_path(object))
}

impl Swift {
    /// Creates a container; succeeds if it already exists.
    ///
    /// # Errors
    /// [`ClientError`], as for every call here.
    pub async fn put_container(&self, container: &str) -> Result<(), ClientError> {
        let path = format!("/{}", encode_value(container));
        self.request(Method::PUT, &path, "", HeaderMap::new(), Payload::Empty)
            .await?;
        Ok(())
    }

    /// A container's metadata.
    ///
    /// # Errors
    /// [`ClientError`], as for every call here.
    pub async fn head_container(&self, container: &str) -> Result<Info, ClientError> {
        let path = format!("/{}", encode_value(container));
        let headers = HeaderMap::new();
        let answer = self
            .request(Method::HEAD, &path, "", headers, Payload::Empty)
            .await?;
        Ok(Info::of(answer.into_parts().0.headers))
    }

    /// An object's metadata.
    ///
    /// # Errors
    /// [`ClientError`], as for every call here; [`ClientError::Protocol`] if no length is told, as
    /// for a dynamic large object of many segments.
    pub async fn head(&self, container: &str, object: &str) -> Result<Info, ClientError> {
        self.head_with(container, object, HeaderMap::new()).await
    }

    /// Metadata like [`Swift::head`], of the newest version on any server.
    ///
    /// # Errors
    /// See [`Swift::head`].
    pub async fn head_newest(&self, container: &str, object: &str) -> Result<Info, ClientError> {
        self.head_with(container, object, newest()).await
    }

    /// Metadata of a symlink itself, of the newest version on any server; of another object as
    /// [`Swift::head_newest`].
    ///
    /// # Errors
    /// See [`Swift::head`].
    pub async fn head_symlink(&self, container: &str, object: &str) -> Result<Info, ClientError> {
        let query = "?symlink=get";
        self.head_query(container, object, query, newest()).await
    }

    async fn head_with(
        &self,
        container: &str,
        object: &str,
        headers: HeaderMap,
    ) -> Result<Info, ClientError> {
        self.head_query(container, object, "", headers).await
    }

    async fn head_query(
        &self,
        container: &str,
        object: &str,
        query: &str,
        headers: HeaderMap,
    ) -> Result<Info, ClientError> {
        let path = path_of(container, object);
        let answer = self
            .request(Method::HEAD, &path, query, headers, Payload::Empty)
            .await?;
        let headers = answer.into_parts().0.headers;
        // Dynamic large objects of many segments have no length: taking it for 0 would truncate the
        // object.
        match headers.contains_key(CONTENT_LENGTH) {
            true => Ok(Info::of(headers)),
            false => Err(protocol(
                Method::HEAD,
                &path,
                "no length was told".to_owned(),
            )),
        }
    }

    /// Reads an object: its metadata, and its body as a stream.
    ///
    /// # Errors
    /// [`ClientError`], as for every call here; [`ClientError::Protocol`] if a range was asked for
    /// and the status is not 206.
    pub async fn get(
        &self,
        container: &str,
        object: &str,
        query: GetQuery<'_>,
    ) -> Result<(Info, Body), ClientError> {
        let (headers, path) = (query.headers()?, path_of(container, object));
        let answer = self
            .request(Method::GET, &path, "", headers, Payload::Empty)
            .await?;
        let (parts, body) = answer.into_parts();
        if query.range.is_some() && parts.status != StatusCode::PARTIAL_CONTENT {
            let error = format!("a range was asked for, and {} came", parts.status);
            return Err(protocol(Method::GET, &path, error));
        }
        Ok((Info::of(parts.headers), body))
    }

    /// Reads the range of a query into `buffer`, in place of what it has; repeated if a body breaks
    /// off.
    ///
    /// # Errors
    /// [`ClientError`], as for every call here; [`ClientError::Protocol`] if the number of bytes
    /// that came is another.
    pub async fn get_range(
        &self,
        container: &str,
        object: &str,
        query: GetQuery<'_>,
        buffer: &mut Vec<u8>,
    ) -> Result<(), ClientError> {
        let path = path_of(container, object);
        let (_, length) = query.range.unwrap_or_default();
        let mut attempt = 1;
        loop {
            buffer.clear();
            let directly = match length >= DIRECT_MIN_BYTES {
                true => {
                    let (headers, length) = (query.headers()?, length as usize);
                    self.read_range(&path, headers, length, buffer).await
                }
                false => None,
            };
            let read = match directly {
                Some(read) => read,
                None => {
                    let (_, body) = self.get(container, object, query).await?;
                    buffer.clear();
                    self.fill(buffer, body, &path, length).await
                }
            };
            match read {
                Ok(()) if buffer.len() as u64 == length => return Ok(()),
                Ok(()) => {
                    let came = buffer.len();
                    let error = format!("{length} bytes were asked for, {came} came");
                    return Err(protocol(Method::GET, &path, error));
                }
                Err(error) if attempt < self.options().retries.attempts && error.is_passing() => {
                    tracing::debug!(attempt, %error, "a body broke off, it is asked for again");
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Stores an object. `headers` are its content type, metadata and further request headers.
    ///
    /// # Errors
    /// [`WriteError`], which tells whether the object may have been stored.
    pub async fn put(
        &self,
        container: &str,
        object: &str,
        mut headers: HeaderMap,
        payload: Payload,
        condition: Condition<'_>,
    ) -> Result<Info, WriteError> {
        condition.put_into(&mut headers)?;
        let (path, repeat) = (path_of(container, object), condition.repeat());
        let answer = self
            .send(Method::PUT, &path, "", headers, payload, repeat)
            .await?;
        Ok(Info::of(answer.into_parts().0.headers))
    }

    /// Makes an object a symlink to another one of the container. `headers` are the symlink's own
    /// content type and metadata.
    ///
    /// # Errors
    /// [`WriteError`], which tells whether the symlink may have been made.
    pub async fn put_symlink(
        &self,
        container: &str,
        object: &str,
        target: &str,
        mut headers: HeaderMap,
        condition: Condition<'_>,
    ) -> Result<Info, WriteError> {
        let target = path_of(container, target);
        headers.insert("x-symlink-target", value(target.trim_start_matches('/'))?);
        self.put(container, object, headers, Payload::Empty, condition)
            .await
    }

    /// Stores the manifest of a static large object.
    ///
    /// # Errors
    /// [`WriteError`], which tells whether the manifest may have been stored.
    pub async fn put_manifest(
        &self,
        container: &str,
        object: &str,
        mut headers: HeaderMap,
        entries: &[ManifestEntry],
        condition: Condition<'_>,
    ) -> Result<Info, WriteError> {
        condition.put_into(&mut headers)?;
        let (path, repeat) = (path_of(container, object), condition.repeat());
        let body = serde_json::to_vec(entries)
            .map_err(|error| ClientError::Invalid(format!("a manifest: {error}")))?;
        let query = "?multipart-manifest=put";
        let answer = self
            .send(Method::PUT, &path, query, headers, body.into(), repeat)
            .await?;
        Ok(Info::of(answer.into_parts().0.headers))
    }

    /// Reads the segments of a static large object.
    ///
    /// # Errors
    /// [`ClientError`], as for every call here; [`ClientError::Protocol`] if the content is no
    /// manifest.
    pub async fn get_manifest(
        &self,
        container: &str,
        object: &str,
    ) -> Result<Vec<ManifestEntry>, ClientError> {
        self.get_manifest_with(container, object, HeaderMap::new())
            .await
    }

    /// Reads segments like [`Swift::get_manifest`], of the newest version on any server.
    ///
    /// # Errors
    /// See [`Swift::get_manifest`].
    pub async fn get_newest_manifest(
        &self,
        container: &str,
        object: &str,
    ) -> Result<Vec<ManifestEntry>, ClientError> {
        self.get_manifest_with(container, object, newest()).await
    }

    async fn get_manifest_with(
        &self,
        container: &str,
        object: &str,
        headers: HeaderMap,
    ) -> Result<Vec<ManifestEntry>, ClientError> {
        let path = path_of(container, object);
        let query = "?multipart-manifest=get&format=raw";
        let answer = self
            .request(Method::GET, &path, query, headers, Payload::Empty)
            .await?;
        let body = self.whole(answer, &path, MANIFEST_MAX_BYTES).await?;
        serde_json::from_slice(&body).map_err(|error| protocol(Method::GET, &path, error))
    }

    /// Replaces an object's metadata.
    ///
    /// # Errors
    /// [`WriteError`], which tells whether the metadata may have been replaced.
    pub async fn post(
        &self,
        container: &str,
        object: &str,
        mut headers: HeaderMap,
        condition: Condition<'_>,
    ) -> Result<(), WriteError> {
        condition.put_into(&mut headers)?;
        let (path, repeat) = (path_of(container, object), condition.repeat());
        self.send(Method::POST, &path, "", headers, Payload::Empty, repeat)
            .await?;
        Ok(())
    }

    /// Copies an object within the store, with its metadata; of a large object the manifest is
    /// copied. The condition applies to the source.
    ///
    /// # Errors
    /// [`ClientError`], as for every call here; a condition that does not hold is a status.
    pub async fn copy(
        &self,
        container: &str,
        source: &str,
        target: &str,
        condition: Condition<'_>,
    ) -> Result<Info, ClientError> {
        let mut headers = HeaderMap::new();
        condition.put_into(&mut headers)?;
        headers.insert("destination", value(&path_of(container, target))?);
        let path = path_of(container, source);
        let copy =
            Method::from_bytes(b"COPY").map_err(|error| ClientError::Invalid(error.to_string()))?;
        let query = "?multipart-manifest=get";
        let answer = self
            .request(copy, &path, query, headers, Payload::Empty)
            .await?;
        Ok(Info::of(answer.into_parts().0.headers))
    }

    /// Deletes an object (of a large one the manifest); returns false if it does not exist.
    ///
    /// # Errors
    /// [`WriteError`], which tells whether the object may have been deleted.
    pub async fn delete(
        &self,
        container: &str,
        object: &str,
        condition: Condition<'_>,
    ) -> Result<bool, WriteError> {
        let mut headers = HeaderMap::new();
        condition.put_into(&mut headers)?;
        let (path, repeat) = (path_of(container, object), condition.repeat());
        match self
            .send(Method::DELETE, &path, "", headers, Payload::Empty, repeat)
            .await
        {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Collects a whole body.
    pub(crate) async fn whole(
        &self,
        answer: Response,
        path: &str,
        limit: u64,
    ) -> Result<Bytes, ClientError> {
        let mut buffer = Vec::new();
        self.fill(&mut buffer, answer.into_body(), path, limit)
            .await?;
        Ok(buffer.into())
    }

    /// Appends a body of at most `limit` bytes to a buffer; each piece must arrive within the stall
    /// timeout. It is copied as it comes, so that its
    /// memory is used for the next one.
    async fn fill(
        &self,
        buffer: &mut Vec<u8>,
        mut body: Body,
        path: &str,
        limit: u64,
    ) -> Result<(), ClientError> {
        let broken = |reason: String| ClientError::Broken {
            method: Method::GET,
            path: path.to_owned(),
            host: self.account().authority(),
            reason,
        };
        while let Some(chunk) = body.next_chunk_within(self.options().stall_timeout).await {
            let chunk = chunk.map_err(|error| broken(error.to_string()))?;
            if (buffer.len() + chunk.len()) as u64 > limit {
                let error = format!("more than {limit} bytes came");
                return Err(protocol(Method::GET, path, error));
            }
            buffer.extend_from_slice(&chunk);
        }
        Ok(())
    }
}

pub(crate) fn protocol(method: Method, path: &str, reason: impl ToString) -> ClientError {
    ClientError::Protocol {
        method,
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}
