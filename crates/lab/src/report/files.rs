//! `cairn lab report`: reads runs and writes the page, the pictures, the tables and the JSON.
//!
//!
//! ```text
//! OUT/report.html          the page
//! OUT/report.json          the runs as the page shows them
//! OUT/plots/NNN-name.svg   every picture, and .png
//! OUT/tables/NN-run/*.csv  the lab's tables of each run, imported ones too
//! ```
//!
//! A single run of our own takes them into its folder, its tables and COSBench's directly.

use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::open::{OpenError, open};
use crate::plot::{PngError, png, svg};
use crate::record::RunFolder;
use crate::results::model::Run;
use crate::results::write_whole;
use crate::results::{ReadError, WriteError, read_folder, write_run_tables, write_tables};

use super::html::page_of;
use super::sections::{Section, sections};
use super::words::{labels, slug};

/// A run folder, a folder of such, or another tool's results; with an optional label.
#[derive(Clone, Debug)]
pub struct Input {
    pub label: Option<String>,
    pub path: PathBuf,
}

impl Input {
    /// Parses `DIR` or `NAME=DIR`; an existing folder whose name contains an equals sign is a
    /// folder.
    pub fn parse(text: &str) -> Input {
        let path = PathBuf::from(text);
        match text.split_once('=') {
            Some((label, dir)) if !label.is_empty() && !path.exists() => Input {
                label: Some(label.to_owned()),
                path: dir.into(),
            },
            _ => Input { label: None, path },
        }
    }

    /// The runs, named by the label if there is one: `NAME`, or `NAME 1`, `NAME 2`, ….
    ///
    /// # Errors
    /// The runs cannot be read: see [`open()`].
    pub fn runs(&self) -> Result<Vec<Run>, OpenError> {
        let mut runs = open(&self.path)?;
        if let Some(label) = &self.label {
            let several = runs.len() > 1;
            for (index, run) in runs.iter_mut().enumerate() {
                run.name = match several {
                    true => format!("{label} {}", index + 1),
                    false => label.clone(),
                };
            }
        }
        Ok(runs)
    }
}

#[derive(Clone, Debug)]
pub struct ReportOptions {
    pub inputs: Vec<Input>,
    /// Output folder; by default a single run's own folder, otherwise `lab-report`.
    pub out: Option<PathBuf>,
    /// Write pictures as PNG too.
    pub png: bool,
}

/// Files that were written.
#[derive(Debug)]
pub struct Report {
    pub page: PathBuf,
    pub pictures: usize,
    pub runs: Vec<Run>,
}

#[derive(Debug, Error)]
pub enum ReportError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error("picture {name}: {source}")]
    Picture { name: String, source: PngError },
    #[error("cannot make {}: {source}", path.display())]
    Folder {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("name a run folder or another tool's results")]
    NoInput,
}

/// Reads the runs, and writes the page, the JSON, the pictures and the tables.
///
/// # Errors
/// `NoInput` without an input, `Open` or `Read` for runs that cannot be read, `Folder`, `Write` or
/// `Picture` for what cannot be written.
pub fn report(options: &ReportOptions) -> Result<Report, ReportError> {
    let [first, rest @ ..] = options.inputs.as_slice() else {
        return Err(ReportError::NoInput);
    };
    let own = rest.is_empty() && RunFolder::new(&first.path).run().is_file();
    let mut runs = Vec::new();
    if own {
        let recorded = read_folder(&first.path)?;
        write_tables(&first.path, &recorded)?;
        runs.extend(first.runs()?);
    } else {
        for input in &options.inputs {
            runs.extend(input.runs()?);
        }
    }
    let out = match (&options.out, own) {
        (Some(out), _) => out.clone(),
        (None, true) => first.path.clone(),
        (None, false) => PathBuf::from("lab-report"),
    };
    let pictures = write_report(&runs, None, &out, options.png)?;
    if !own {
        write_all_tables(&runs, &out)?;
    }
    Ok(Report {
        page: out.join("report.html"),
        pictures,
        runs,
    })
}

/// Writes page, JSON and pictures of runs; returns the number of pictures. `first` is the first
/// section of the page; the caller writes its pictures.
///
/// # Errors
/// `Folder` or `Write` for what cannot be written, `Picture` for a figure that cannot be a PNG.
pub fn write_report(
    runs: &[Run],
    first: Option<&Section>,
    out: &Path,
    with_png: bool,
) -> Result<usize, ReportError> {
    let plots = out.join("plots");
    make_folder(&plots)?;
    remove_earlier(&plots);
    let sections = sections(runs);
    write_whole(
        &out.join("report.html"),
        page_of(runs, first, &sections).as_bytes(),
    )?;
    let mut json = serde_json::to_vec(runs).map_err(|source| WriteError::Json {
        path: out.join("report.json"),
        source,
    })?;
    json.push(b'\n');
    write_whole(&out.join("report.json"), &json)?;
    let figures = sections.iter().flat_map(|s| &s.figures);
    let mut count = 0;
    for figure in figures {
        count += 1;
        let name = format!("{count:03}-{}", figure.slug);
        let picture = svg(&figure.scene);
        write_whole(&plots.join(format!("{name}.svg")), picture.as_bytes())?;
        if with_png {
            let picture = png(&figure.scene).map_err(|source| ReportError::Picture {
                name: name.clone(),
                source,
            })?;
            write_whole(&plots.join(format!("{name}.png")), &picture)?;
        }
    }
    Ok(count)
}

/// Removes pictures of an earlier report, by their naming scheme, since users may keep other files
/// there.
fn remove_earlier(plots: &Path) {
    for entry in std::fs::read_dir(plots).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let number = name.bytes().take_while(u8::is_ascii_digit).count();
        let is_picture = name.ends_with(".svg") || name.ends_with(".png");
        if number >= 3 && name[number..].starts_with('-') && is_picture {
            // A picture that cannot be removed stays beside the new ones; this does not fail the
            // report.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn write_all_tables(runs: &[Run], out: &Path) -> Result<(), ReportError> {
    for (index, (run, label)) in runs.iter().zip(labels(runs)).enumerate() {
        let name = format!("{:02}-{}", index + 1, slug(&label));
        let folder = out.join("tables").join(name);
        make_folder(&folder)?;
        write_run_tables(&folder, run)?;
    }
    Ok(())
}

fn make_folder(path: &Path) -> Result<(), ReportError> {
    std::fs::create_dir_all(path).map_err(|source| ReportError::Folder {
        path: path.to_owned(),
        source,
    })
}
