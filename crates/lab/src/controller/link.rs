//! A driver from the controller's perspective: in this process, or at the other end of a
//! connection.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::drive::{Control, Driver, Event};
use crate::plan::Stage;
use crate::record::{DriverMeta, SavedPools};
use crate::resources::Sampler;

/// A message from a driver.
#[derive(Debug)]
pub enum DriverMessage {
    Event(Event),
    /// The driver is lost; no further messages will come.
    Lost(String),
}

/// A message with the driver's number.
pub type Report = (usize, DriverMessage);

/// Commands to a driver. Its messages come through the channel given at creation.
pub trait Link {
    fn meta(&self) -> DriverMeta;

    /// Starts a stage at a time of the controller's clock.
    ///
    /// # Errors
    /// Its thread cannot be started, or its connection has ended, in words for a person.
    fn start(&mut self, number: u32, stage: &Stage, begin_at: f64) -> Result<(), String>;

    fn end_work(&mut self, work: u32);

    fn cancel(&mut self);

    /// The driver's pools after stage `number`; `None` if they are elsewhere, or too large.
    fn pools(&self, number: u32) -> Option<SavedPools> {
        let _ = number;
        None
    }
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
                // The receiver is gone when the run has ended.
                let _ = told.send((index, DriverMessage::Event(Event::Resources(sample))));
            })
        });
        std::thread::Builder::new()
            .name("driver".into())
            .spawn(move || {
                let mut sampler = sampler;
                driver.run_stage(number, &stage, begin_at, &control, &mut |event| {
                    if matches!(event, Event::StageDone { .. }) {
                        // The last sample belongs to this stage.
                        drop(sampler.take());
                    }
                    let _ = report.send((index, DriverMessage::Event(event)));
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

    fn pools(&self, number: u32) -> Option<SavedPools> {
        self.driver.pools.save(number)
    }
}
