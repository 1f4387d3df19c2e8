//! Destination and level of the log: standard error, for people or as JSON, one event a line; or,
//! for programs started by Swift's names, syslog. Sources of the level, strongest first:
//! `--log-level`, the environment's `RUST_LOG`, the conf files' `log_level`.

use std::fmt;
use std::io::IsTerminal;

use anyhow::{Context, Result};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::settings::LogLevel;
use crate::syslog::{ACCESS, Syslog, SyslogOptions};

/// Format of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LogFormat {
    #[default]
    Human,
    Json,
}

/// Options of the command line about the log.
#[derive(Clone, Debug, Default)]
pub struct LogOptions {
    pub format: LogFormat,
    /// A level, or directives such as `info,cairn_proxy=debug`.
    pub level: Option<String>,
    /// Sends to syslog instead of standard error.
    pub syslog: Option<SyslogOptions>,
    /// Syslog options of the access log; `None` to use the general ones.
    pub access_syslog: Option<SyslogOptions>,
}

/// Starts the log of this process; a second call has no effect.
///
/// # Errors
/// The level of the options, or of RUST_LOG, is no log filter.
pub fn start(options: &LogOptions, from_conf: LogLevel) -> Result<()> {
    let filter = filter(options, std::env::var("RUST_LOG").ok(), from_conf)?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter);
    if let Some(syslog) = &options.syslog {
        let access = options.access_syslog.as_ref().unwrap_or(syslog);
        let _ = builder
            .with_writer(Syslog::new(syslog.clone(), access.clone()))
            .with_ansi(false)
            .without_time()
            .log_internal_errors(false)
            .map_event_format(SyslogLines)
            .try_init();
        return Ok(());
    }
    let builder = builder
        .with_writer(std::io::stderr)
        .log_internal_errors(false);
    // An error means that a log is running: tests start several servers in one process.
    let _ = match options.format {
        LogFormat::Human => builder
            .with_ansi(std::io::stderr().is_terminal())
            .map_event_format(HumanLines)
            .try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    Ok(())
}

/// Formatter of lines for people. Access-log lines, one per request, are complete and escaped
/// already, and take a fast path.
struct HumanLines(Format<Full>);

impl<S, N> FormatEvent<S, N> for HumanLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        if metadata.target() != ACCESS || writer.has_ansi_escapes() {
            return self.0.format_event(context, writer, event);
        }
        SystemTime.format_time(&mut writer)?;
        write!(writer, " {:>5} access: ", metadata.level().as_str())?;
        let mut line = AccessLine(writer.by_ref(), Ok(()));
        event.record(&mut line);
        line.1?;
        writer.write_char('\n')
    }
}

/// Formatter of lines for syslog. An access-log line is the message alone, as parsers of Swift's
/// logs expect.
struct SyslogLines(Format<Full, ()>);

impl<S, N> FormatEvent<S, N> for SyslogLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if event.metadata().target() != ACCESS {
            return self.0.format_event(context, writer, event);
        }
        let mut line = AccessLine(writer.by_ref(), Ok(()));
        event.record(&mut line);
        line.1
    }
}

struct AccessLine<'w>(Writer<'w>, fmt::Result);

impl Visit for AccessLine<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" && self.1.is_ok() {
            self.1 = write!(self.0, "{value:?}");
        }
    }
}

fn filter(
    options: &LogOptions,
    environment: Option<String>,
    from_conf: LogLevel,
) -> Result<EnvFilter> {
    if let Some(level) = &options.level {
        let remedy = "expected error, warn, info, debug, trace, or such as info,cairn_proxy=debug";
        return EnvFilter::try_new(level).with_context(|| format!("--log-level {level}: {remedy}"));
    }
    if let Some(text) = environment.filter(|text| !text.is_empty()) {
        return EnvFilter::try_new(&text)
            .with_context(|| format!("RUST_LOG={text} in the environment is no log filter"));
    }
    Ok(EnvFilter::new(from_conf.directive()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_strongest() {
        let text = |level: Option<&str>, environment: Option<&str>| {
            let options = LogOptions {
                level: level.map(Into::into),
                ..LogOptions::default()
            };
            filter(&options, environment.map(Into::into), LogLevel::Warning)
                .map(|f| f.to_string())
                .map_err(|e| e.to_string())
        };
        assert_eq!(text(Some("debug"), Some("error")).unwrap(), "debug");
        assert_eq!(text(None, Some("error")).unwrap(), "error");
        assert_eq!(text(None, None).unwrap(), "warn");
        assert!(
            text(Some("a=b=c"), None)
                .unwrap_err()
                .contains("--log-level")
        );
    }
}
