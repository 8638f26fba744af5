"""The command line: one module for each group of commands.

`main` parses the arguments and calls the function of the command. Nearly all printing to the terminal is done in this
package and in `trnflow.flows.display`.
"""
