//! Site configuration in a container's metadata.

use cairn_http::ContainerInfo;
use cairn_http::params::{is_true, quote, quote_path};

/// Configuration values; an empty text means not set.
#[derive(Clone, Debug, Default)]
pub(super) struct Site {
    pub(super) index: String,
    pub(super) error: String,
    pub(super) listings: String,
    pub(super) listings_label: String,
    listings_css: String,
    directory_type: String,
}

impl Site {
    pub(super) fn of(info: &ContainerInfo) -> Site {
        if !info.exists() {
            return Site::default();
        }
        let get = |name: &str| {
            info.meta
                .get(name)
                .map_or("", |text| text.trim())
                .to_owned()
        };
        Site {
            index: get("web-index"),
            error: get("web-error"),
            listings: get("web-listings"),
            listings_label: get("web-listings-label"),
            listings_css: get("web-listings-css"),
            directory_type: get("web-directory-type"),
        }
    }

    pub(super) fn shows_listings(&self) -> bool {
        is_true(&self.listings)
    }

    pub(super) fn directory_type(&self) -> &str {
        match self.directory_type.as_str() {
            "" => "application/directory",
            own => own,
        }
    }

    /// The style sheet's URL relative to a listing of a prefix, if the site has one.
    pub(super) fn css(&self, prefix: &str) -> Option<String> {
        let css = self.listings_css.as_str();
        if css.is_empty() {
            None
        } else if ["/", "http://", "https://"]
            .iter()
            .any(|p| css.starts_with(p))
        {
            let parts: Vec<String> = css.split(':').map(quote_path).collect();
            Some(parts.join(":"))
        } else {
            let up = "../".repeat(prefix.matches('/').count());
            Some(format!("{up}{}", quote_path(css)))
        }
    }
}

/// A name as a link in a listing of its folder. Dots are escaped, so that no link leads upwards.
pub(super) fn link(name: &str) -> String {
    name.split('/')
        .map(quote)
        .collect::<Vec<_>>()
        .join("/")
        .replace('.', "%2E")
}
