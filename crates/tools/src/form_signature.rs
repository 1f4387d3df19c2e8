//! `swift-form-signature`: signs a form for direct uploads into a container.

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use cairn_formats::hmac;
use cairn_types::hex;
use clap::Parser;

/// Sign a form for the middleware formpost
///
/// PATH begins all uploaded objects' names and names a container at least:
/// /v1/account/container/object_prefix. KEY is the account's X-Account-Meta-Temp-URL-Key. The form
/// is good for SECONDS from now.
#[derive(Debug, Parser)]
#[command(version, verbatim_doc_comment)]
pub(crate) struct Options {
    path: String,
    /// URL to which the browser is redirected after the uploads
    redirect: String,
    /// In bytes, of each file
    #[arg(allow_hyphen_values = true)]
    max_file_size: String,
    #[arg(allow_hyphen_values = true)]
    max_file_count: String,
    #[arg(allow_hyphen_values = true)]
    seconds: String,
    key: String,
}

pub(crate) fn run(options: Options, out: &mut dyn Write) -> Result<u8> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let form = match Form::of(&options, now.as_secs() as i64) {
        Ok(form) => form,
        Err(problem) => {
            writeln!(out, "{problem}")?;
            return Ok(1);
        }
    };
    form.print(&options, out)?;
    Ok(0)
}

struct Form {
    max_file_size: i64,
    max_file_count: i64,
    expires: i64,
    signature: String,
}

impl Form {
    fn of(options: &Options, now: i64) -> Result<Form, &'static str> {
        let number = |text: &str| text.trim().parse::<i64>().ok();
        let max_file_size = number(&options.max_file_size).filter(|size| *size >= 0);
        let max_file_size = max_file_size
            .ok_or("Please use a <max_file_size> value greater than or equal to 0.")?;
        let max_file_count = number(&options.max_file_count).filter(|count| *count >= 1);
        let max_file_count =
            max_file_count.ok_or("Please use a positive <max_file_count> value.")?;
        let expires = number(&options.seconds).and_then(|seconds| now.checked_add(seconds));
        let expires = expires.filter(|expires| *expires >= 1);
        let expires = expires.ok_or("Please use a positive <seconds> value.")?;
        let parts: Vec<&str> = options.path.splitn(5, '/').collect();
        let names_a_container = matches!(
            parts[..],
            ["", "v1", account, container, ..] if !account.is_empty() && !container.is_empty()
        );
        if !names_a_container {
            return Err("<path> must point to a container at least.\n\
                        For example: /v1/account/container\n         \
                        Or: /v1/account/container/object_prefix");
        }
        let (path, redirect) = (&options.path, &options.redirect);
        let signed = format!("{path}\n{redirect}\n{max_file_size}\n{max_file_count}\n{expires}");
        let signature = hmac::sha1(options.key.as_bytes(), signed.as_bytes());
        Ok(Form {
            max_file_size,
            max_file_count,
            expires,
            signature: hex::encode(signature),
        })
    }

    fn print(&self, options: &Options, out: &mut dyn Write) -> Result<()> {
        let Form {
            max_file_size,
            max_file_count,
            expires,
            signature,
        } = self;
        writeln!(
            out,
            "  Expires: {expires}\nSignature: {signature}\n\nSample form:\n"
        )?;
        writeln!(
            out,
            "NOTE: the <form> tag's \"action\" attribute does not contain the Swift cluster's \
             hostname.\nYou should manually add it before using the form.\n"
        )?;
        let path = &options.path;
        writeln!(
            out,
            "<form action=\"{path}\" method=\"POST\" enctype=\"multipart/form-data\">"
        )?;
        let mut hidden = |name: &str, value: &dyn std::fmt::Display| {
            writeln!(
                out,
                "  <input type=\"hidden\" name=\"{name}\" value=\"{value}\" />"
            )
        };
        if !options.redirect.is_empty() {
            hidden("redirect", &options.redirect)?;
        }
        hidden("max_file_size", max_file_size)?;
        hidden("max_file_count", max_file_count)?;
        hidden("expires", expires)?;
        hidden("signature", signature)?;
        writeln!(
            out,
            "  <!-- This signature allows for at most {max_file_count} files, -->\n  \
             <!-- but it may also have any smaller number. -->\n  \
             <!-- Remove file inputs as needed. -->"
        )?;
        for i in 0..*max_file_count {
            writeln!(out, "  <input type=\"file\" name=\"file{i}\" />\n  <br />")?;
        }
        writeln!(out, "  <input type=\"submit\" />\n</form>")?;
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn form(words: &str) -> Result<Form, &'static str> {
        let words = std::iter::once("swift-form-signature").chain(words.split(' '));
        Form::of(&Options::try_parse_from(words).unwrap(), 1_700_000_000)
    }

    #[test]
    fn the_signature_is_formposts() {
        let form = form("/v1/AUTH_a/c/p https://x/ 1024 2 600 secret").unwrap();
        assert_eq!(form.expires, 1_700_000_600);
        // hmac.new(b'secret', b'/v1/AUTH_a/c/p\nhttps://x/\n1024\n2\n1700000600', 'sha1')
        assert_eq!(form.signature, "ca4404738aafdaac16641961e32c356859d84617");
    }

    #[test]
    fn mistakes() {
        for (words, because) in [
            ("/v1/a/c r -1 1 1 k", "max_file_size"),
            ("/v1/a/c r x 1 1 k", "max_file_size"),
            ("/v1/a/c r 1 0 1 k", "max_file_count"),
            ("/v1/a/c r 1 1 soon k", "seconds"),
            ("/v1/a r 1 1 1 k", "at least"),
            ("/v2/a/c r 1 1 1 k", "at least"),
            ("v1/a/c/ r 1 1 1 k", "at least"),
        ] {
            assert!(form(words).err().unwrap().contains(because), "{words}");
        }
    }
}
