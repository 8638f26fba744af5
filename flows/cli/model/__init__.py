"""Commands about trained models: predict, promote and roll back champions, publish, retrain, watch, sweep; and the
function that finds the model which a user names."""
