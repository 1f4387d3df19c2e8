//! A Swift client over HTTP: logins, token renewal, bounded retries, streaming, ranges, listings
//! and static large objects.
//!
//! [`Swift`] is a session for one account; it is cheap to clone. Every call ends within the
//! timeouts of [`Options`], and a [`ClientError`] states whether the store may have carried it out.
//! There is no cache, and no state but a token and pooled connections.
//!
//! Layer 2: depends on `http` and `types` only, never on a server.

mod capabilities;
mod error;
mod listing;
mod login;
mod manifest;
mod object;
mod payload;
mod swift;
mod transport;
mod url;

pub use capabilities::Capabilities;
pub use error::{ClientError, LoginError, WriteError};
pub use listing::{Entry, ListQuery};
pub use login::{Keystone, KeystoneSecret, Login};
pub use manifest::{ByteRange, ManifestEntry, large_object_etag};
pub use object::{Condition, GetQuery, Info};
pub use payload::Payload;
pub use swift::Swift;
pub use transport::Options;
pub use url::{StoreUrl, encode_path, encode_value};
