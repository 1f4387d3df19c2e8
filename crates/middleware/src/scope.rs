//! Authorizer of signed requests, limited to the account or the container whose key signed,
//! including indirections such as the segments of a large object. For temporary URLs and container
//! sync.

use cairn_http::context::{Authorize, AuthorizeFuture, Granted};
use http::request::Parts;

use crate::names::Names;

pub(crate) struct Scope {
    account: String,
    container: Option<String>,
}

impl Scope {
    pub(crate) fn account(account: &str) -> Scope {
        Scope {
            account: account.to_owned(),
            container: None,
        }
    }

    pub(crate) fn container(account: &str, container: &str) -> Scope {
        Scope {
            account: account.to_owned(),
            container: Some(container.to_owned()),
        }
    }

    fn covers(&self, names: &Names) -> bool {
        let in_container = self.container.is_none() || self.container == names.container;
        self.account == names.account && in_container
    }
}

impl Authorize for Scope {
    fn authorize<'a>(&'a self, request: &'a Parts, _: Option<&'a str>) -> AuthorizeFuture<'a> {
        let names = Names::of(request.uri.path());
        let result = match names {
            Some(names) if self.covers(&names) => Ok(Granted::default()),
            names => {
                let account = names.map(|names| names.account);
                let realm = account.as_deref().unwrap_or("unknown");
                Err(crate::resellers::unauthorized(realm))
            }
        };
        Box::pin(std::future::ready(result))
    }
}
