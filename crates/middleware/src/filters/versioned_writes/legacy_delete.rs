//! DELETE in stack mode: restores the previous version.

use std::collections::VecDeque;

use cairn_http::params::Params;
use cairn_http::{Request, Response, respond};
use http::header::HeaderValue;
use http::{Method, StatusCode};

use super::container::text;
use super::legacy::{Kept, SOURCE, check};
use super::{DELETE_MARKER, authorize};
use crate::cause::{Cause, drain};
use crate::whole::{self, Row};

/// A version in its container's listing.
struct Version {
    name: String,
    is_marker: bool,
}

/// The versions of one object, newest first, read page by page.
struct Versions<'v> {
    kept: &'v Kept<'v>,
    cause: &'v Cause,
    page: VecDeque<Version>,
    marker: String,
    is_over: bool,
}

impl Kept<'_> {
    pub(super) async fn pop(&self, request: Request) -> Result<Response, Response> {
        let (parts, body) = request.into_parts();
        authorize(&parts, self.write_acl.as_deref()).await?;
        let cause = Cause::of_parts(&parts);
        let mut versions = Versions {
            kept: self,
            cause: &cause,
            page: VecDeque::new(),
            marker: String::new(),
            is_over: false,
        };
        while let Some(version) = versions.next().await? {
            if version.is_marker {
                if self.is_there(&cause).await? {
                    // Only the object is removed: before it, the object was deleted.
                    break;
                }
                self.restore_before(&mut versions).await?;
                return self.delete_version(&cause, &version.name).await;
            }
            if self.restore(&cause, &version.name).await? {
                // The version that was restored is removed instead of the object.
                return self.delete_version(&cause, &version.name).await;
            }
        }
        Ok(self
            .filter
            .next
            .call(Request::from_parts(parts, body))
            .await)
    }

    async fn is_there(&self, cause: &Cause) -> Result<bool, Response> {
        let path = self.path.path();
        let mut head = cause.pre_authorized(SOURCE, Method::HEAD, &path, "")?;
        let newest = HeaderValue::from_static("True");
        head.headers_mut().insert("x-newest", newest);
        let found = self.filter.next.call(head).await;
        let is_there = found.status() != StatusCode::NOT_FOUND;
        let found = if is_there { check(found)? } else { found };
        drain(found).await;
        Ok(is_there)
    }

    /// Restores the newest remaining version, unless that is a marker too.
    async fn restore_before(&self, versions: &mut Versions<'_>) -> Result<(), Response> {
        while let Some(version) = versions.next().await? {
            if version.is_marker {
                return Ok(());
            }
            if !self.restore(versions.cause, &version.name).await? {
                continue;
            }
            let gone = self.delete_version(versions.cause, &version.name).await?;
            if gone.status() != StatusCode::NOT_FOUND {
                drain(check(gone)?).await;
            }
            return Ok(());
        }
        Ok(())
    }

    /// Copies a version back to the object; returns false if the version is gone meanwhile.
    async fn restore(&self, cause: &Cause, name: &str) -> Result<bool, Response> {
        let copies = self.copies(cause);
        let version = copies.get(&self.version_path(name)).await?;
        if version.status() == StatusCode::NOT_FOUND {
            drain(version).await;
            return Ok(false);
        }
        let restored = copies.put(&self.path.path(), check(version)?).await?;
        drain(check(restored)?).await;
        Ok(true)
    }

    async fn delete_version(&self, cause: &Cause, name: &str) -> Result<Response, Response> {
        let path = self.version_path(name);
        let delete = cause.pre_authorized(SOURCE, Method::DELETE, &path, "")?;
        Ok(self.filter.next.call(delete).await)
    }
}

impl Versions<'_> {
    async fn next(&mut self) -> Result<Option<Version>, Response> {
        if self.page.is_empty() && !self.is_over {
            self.read_page().await?;
        }
        Ok(self.page.pop_front())
    }

    async fn read_page(&mut self) -> Result<(), Response> {
        let failed = || respond::standard(StatusCode::INTERNAL_SERVER_ERROR);
        let mut query = Params::default();
        query.set("prefix", self.kept.prefix());
        query.set("marker", self.marker.as_str());
        query.set("reverse", "on");
        let path = format!("/v1/{}/{}", self.kept.path.account, self.kept.versions);
        let query = query.encode();
        let get = self
            .cause
            .pre_authorized(SOURCE, Method::GET, &path, &query)?;
        let response = self.kept.filter.next.call(get).await;
        let status = response.status();
        if !status.is_success() {
            drain(response).await;
            self.is_over = true;
            return match status {
                StatusCode::NOT_FOUND => Ok(()),
                status if status.is_client_error() => {
                    Err(respond::standard(StatusCode::PRECONDITION_FAILED))
                }
                _ => Err(failed()),
            };
        }
        let (_, json) = whole::listing(response).await?;
        let rows: Vec<Row> = if json.is_empty() {
            Vec::new()
        } else {
            serde_json::from_slice(&json).map_err(|_| failed())?
        };
        self.page = rows.iter().filter_map(version).collect();
        match self.page.back() {
            // Newest first: a page that does not continue downwards would repeat for ever.
            Some(last) if self.marker.is_empty() || last.name < self.marker => {
                self.marker.clone_from(&last.name);
                Ok(())
            }
            Some(_) => Err(failed()),
            None => {
                self.is_over = true;
                Ok(())
            }
        }
    }
}

fn version(row: &Row) -> Option<Version> {
    Some(Version {
        name: text(row, "name")?.to_owned(),
        is_marker: text(row, "content_type") == Some(DELETE_MARKER),
    })
}
