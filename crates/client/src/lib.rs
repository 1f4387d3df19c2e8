//! A Swift client over HTTP, or over a service of the same process: logins, token renewal, bounded
//! retries, streaming, ranges, listings and static large objects.
//!
//! [`Swift`] is a session for one account; it is cheap to clone. [`Transport`] is what carries its
//! requests; those who sign requests otherwise, or not at all, send a [`Call`] over it. Every call
//! ends within the timeouts of [`Options`], and a [`ClientError`] states whether the store may have
//! carried it out. There is no cache but of host names, and no state but a token and pooled
//! connections.
//!
//! Layer 2: depends on `http` and `types` only, never on a server.

mod call;
mod capabilities;
mod changes;
mod error;
mod listing;
mod login;
mod manifest;
mod names;
mod object;
mod payload;
mod retries;
mod swift;
mod transport;
mod url;

pub use cairn_http::tls::Trust;
pub use call::{Accepts, Call};
pub use capabilities::Capabilities;
pub use changes::{Change, Changes};
pub use error::{ClientError, LoginError, WriteError};
pub use listing::{Entry, ListQuery};
pub use login::{EndpointChoice, Keystone, KeystoneSecret, Login, SignedIn};
pub use manifest::{ByteRange, ManifestEntry, large_object_etag};
pub use object::{Condition, GetQuery, Info};
pub use payload::Payload;
pub use retries::{Repeat, Retries, RetryCauses};
pub use swift::Swift;
pub use transport::{Options, Transport};
pub use url::{StoreUrl, encode_path, encode_value};
