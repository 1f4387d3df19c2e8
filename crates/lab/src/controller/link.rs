//! A driver as the controller sees it: in this process, or at the other end of a connection.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::drive::{Control, Driver, Event};
use crate::plan::Stage;
use crate::record::DriverMeta;
use crate::resources::Sampler;

/// What came from a driver.
#[derive(Debug)]
pub enum Told {
    Event(Event),
    /// It will not be heard of again.
    Lost(String),
}

/// By the driver's number.
pub type Report = (usize, Told);

/// Commands to a driver. What it answers comes through the channel it was made with.
pub trait Link {
    fn meta(&self) -> DriverMeta;

    /// Starts a stage at a moment of the controller's clock.
    fn start(&mut self, number: u32, stage: &Stage, begin_at: f64) -> Result<(), String>;

    fn end_work(&mut self, work: u32);

    fn cancel(&mut self);
}

/// A driver in this process.
#[derive(Debug)]
pub struct LocalLink {
    driver: Arc<Driver>,
    meta: DriverMeta,
    control: Arc<Control>,
    report: mpsc::Sender<Report>,
    index: usize,
    sampling: Option<Duration>,
    watched: Vec<String>,
}

impl LocalLink {
    pub fn new(
        driver: Driver,
        index: usize,
        report: mpsc::Sender<Report>,
        sampling: Option<Duration>,
        watched: Vec<String>,
    ) -> Self {
        let meta = DriverMeta {
            name: driver.name.clone(),
            address: "local".into(),
            host: crate::resources::host(),
            ..DriverMeta::default()
        };
        Self {
            driver: Arc::new(driver),
            meta,
            control: Arc::default(),
            report,
            index,
            sampling,
            watched,
        }
    }
}

impl Link for LocalLink {
    fn meta(&self) -> DriverMeta {
        self.meta.clone()
    }

    fn start(&mut self, number: u32, stage: &Stage, begin_at: f64) -> Result<(), String> {
        self.control = Arc::default();
        let (driver, control) = (self.driver.clone(), self.control.clone());
        let (report, index, stage) = (self.report.clone(), self.index, stage.clone());
        let told = report.clone();
        let sampler = self.sampling.map(|interval| {
            Sampler::start(interval, self.watched.clone(), move |sample| {
                // Who asked may have gone; the run has ended then.
                let _ = told.send((index, Told::Event(Event::Resources(sample))));
            })
        });
        std::thread::Builder::new()
            .name("driver".into())
            .spawn(move || {
                let mut sampler = sampler;
                driver.run_stage(number, &stage, begin_at, &control, &mut |event| {
                    if matches!(event, Event::StageDone { .. }) {
                        // Its last sample is of this stage.
                        drop(sampler.take());
                    }
                    let _ = report.send((index, Told::Event(event)));
                });
            })
            .map(|_| ())
            .map_err(|error| error.to_string())
    }

    fn end_work(&mut self, work: u32) {
        self.control.end_work(work);
    }

    fn cancel(&mut self) {
        self.control.cancel();
    }
}
