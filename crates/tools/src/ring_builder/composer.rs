//! `swift-ring-composer FILE show`, and `FILE compose [BUILDER…] --output RING [--force]`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use cairn_ring::{CompositeBuilder, CompositeError};

use super::options::{NO_LETTER, Options, Spec};
use super::{EXIT_ERROR, EXIT_SUCCESS};

const USAGE: &str = "\
Puts the rings of several builders together: one ring for a cluster whose regions keep whole
replicas. The builders have the same partition power, and no region or device in common; balance
them one by one, and compose after each.

  swift-ring-composer <composite builder file> show
      What the composite ring is made of.

  swift-ring-composer <composite builder file> compose [<builder> <builder> ...]
                      --output <ring file> [--force]
      Composes the ring, of the builders of the last time if none are named. Others than the last
      time's, or older ones, or no change at all, are an error without --force.
";

const COMPOSE: &[Spec] = &[
    ('o', "output", true),
    (NO_LETTER, "force", false),
    ('h', "help", false),
];

/// Runs one command. `args` are the arguments after the program's name. Returns the exit code.
pub fn run(args: &[String], out: &mut dyn Write, err: &mut dyn Write) -> i32 {
    // The exit code is still returned if the terminal is gone.
    match dispatch(args, out) {
        Ok(()) => EXIT_SUCCESS,
        Err(Refused::Usage(problem)) => {
            let _ = writeln!(err, "{USAGE}\n{problem}");
            EXIT_ERROR
        }
        Err(Refused::Failed { what, error }) => {
            let _ = writeln!(err, "{what}\nOriginal exception message:\n{error}");
            EXIT_ERROR
        }
    }
}

enum Refused {
    Usage(String),
    Failed { what: &'static str, error: String },
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Refused {
        failed("cannot write")(error)
    }
}

fn failed<E: ToString>(what: &'static str) -> impl Fn(E) -> Refused {
    move |error| Refused::Failed {
        what,
        error: error.to_string(),
    }
}

fn dispatch(args: &[String], out: &mut dyn Write) -> Result<(), Refused> {
    if args.iter().any(|arg| arg == "-h" || arg == "--help") {
        return Ok(write!(out, "{USAGE}")?);
    }
    let [file, verb, rest @ ..] = args else {
        return Err(Refused::Usage("expected a file and show or compose".into()));
    };
    let file = Path::new(file);
    let load = || {
        CompositeBuilder::load(file).map_err(failed::<CompositeError>(
            "An error occurred while loading the composite builder file.",
        ))
    };
    match (verb.as_str(), rest) {
        ("show", []) => Ok(writeln!(out, "{}", load()?.show())?),
        ("compose", rest) => {
            let options = Options::parse(COMPOSE, rest);
            let options = options.map_err(|stop| Refused::Usage(stop.message))?;
            let composite = match file.exists() {
                true => load()?,
                false => CompositeBuilder::new(),
            };
            compose(composite, file, &options)
        }
        ("show", _) => Err(Refused::Usage("show takes no arguments".into())),
        (verb, _) => Err(Refused::Usage(format!(
            "{verb:?} is an invalid choice: expected show or compose"
        ))),
    }
}

fn compose(mut composite: CompositeBuilder, file: &Path, options: &Options) -> Result<(), Refused> {
    let output = options.text("output");
    let output = output.ok_or_else(|| Refused::Usage("--output is required".into()))?;
    let builders: Vec<PathBuf> = options.positional.iter().map(PathBuf::from).collect();
    let ring = composite
        .compose(&builders, options.has("force"))
        .map_err(failed("An error occurred while composing the ring."))?;
    ring.save(output, ring.format_version).map_err(failed(
        "An error occurred while writing the composite ring file.",
    ))?;
    composite.save(file).map_err(failed(
        "An error occurred while writing the composite builder file.",
    ))
}
